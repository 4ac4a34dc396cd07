"""``rlep pool …``: every verb of an experience pool. Which pool: a run's config, or ``--redis`` or ``--embedded``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rlep.cli.pool.which import Which, on_pool
from rlep.cli.shell import command_errors

pool_app = typer.Typer(
    help="Look into an experience pool, move it, keep it in order, serve it.\n\nWhich pool: the one of a run's config files "
    "(and --set), or --redis URL --name NAME, or --embedded DIR --name NAME. The Redis password comes from "
    "RLEP_REDIS_PASSWORD or RLEP_REDIS_PASSWORD_FILE.",
    no_args_is_help=True,
)

Data = Annotated[
    list[Path] | None,
    typer.Option("--data", metavar="FILE", help="Questions with references; may be repeated (default data.train)."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say what would happen.")]
Identity = Annotated[str, typer.Argument(metavar="ID", help="A prompt id or a trajectory's content id.")]
Form = Literal["parquet", "jsonl", "candidates"]


@on_pool(pool_app, "stats", "Look")
def stats(
    which: Which,
    *,
    attach: Annotated[
        str | None, typer.Option(metavar="RUN", help="Ask the pool of a running run on the cluster, for counts only.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="Also count its questions without answers.")
    ] = None,
    questions: Annotated[int, typer.Option(min=0, help="Questions measured for the quantiles; 0 takes all.")] = 1024,
    as_json: Json = False,
) -> None:
    """What a pool holds: coverage, lengths, distinctness, memory, by policy and by verifier."""
    from rlep.cli.pool.inspect import show_stats

    config = which.config()
    show_stats(config, attach=attach, data=data, questions=questions, as_json=as_json)


@on_pool(pool_app, "browse", "Look")
def browse(
    which: Which,
    *,
    data: Data = None,
    start: Annotated[str, typer.Option("--from", metavar="PROMPT_ID", help="Begin at this prompt id.")] = "",
    least: Annotated[int, typer.Option(min=1, help="Only questions with so many answers.")] = 1,
) -> None:
    """Page through questions and their decoded answers."""
    from rlep.cli.pool.inspect import browse as run

    config = which.config()
    run(config, data=data, start=start, least=least)


@on_pool(pool_app, "show", "Look")
def show(
    which: Which,
    identity: Identity,
    *,
    as_json: Json = False,
) -> None:
    """Print one question's answers, or one answer, decoded where model.path has the tokenizer."""
    from rlep.cli.pool.inspect import show_record

    show_record(which.config(), identity, as_json=as_json)


@on_pool(pool_app, "sample", "Look")
def sample(
    which: Which,
    *,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="ID", help="May be repeated (default: every question).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Answers a question (default replay.count).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run (default run.seed).")] = None,
    step: Annotated[int, typer.Option(min=0, help="Training step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a question.")] = False,
) -> None:
    """Draw what a training step would draw: the same seed, step and questions give the same answers."""
    from rlep.cli.pool.inspect import show_sample

    config = which.config()
    show_sample(config, prompts or (), count=count, seed=seed, step=step, as_json=as_json)


@on_pool(pool_app, "export", "Move")
def export(
    which: Which,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory, or for candidates a .parquet or .jsonl file.")],
    *,
    form: Annotated[
        Form,
        typer.Option(
            "--as", help="parquet, jsonl: every field, shards with a manifest. candidates: texts in a prompt file."
        ),
    ] = "parquet",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write a pool to files. The same command goes on with an export that was interrupted."""
    from rlep.cli.pool.files import export as run
    from rlep.cli.pool.open import files_of

    config = which.config()
    run(config, out, form=form, data=files_of(config, data), as_json=as_json)


@on_pool(pool_app, "import", "Move")
def import_(
    which: Which,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="An export's directory, or a prompt file with candidates.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Put files into a pool; texts are tokenised for model.path and graded first. May be repeated."""
    from rlep.cli.pool.files import import_ as run

    run(which.config(), source, as_json=as_json)


@on_pool(pool_app, "backup", "Move")
def backup(
    which: Which,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Written as a whole or not at all.")],
    *,
    as_json: Json = False,
) -> None:
    """Copy a pool, quarantine and pins included, into one file."""
    from rlep.cli.pool.files import back_up

    back_up(which.config(), out, as_json=as_json)


@on_pool(pool_app, "restore", "Move")
def restore(
    which: Which,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What `rlep pool backup` wrote.")],
    *,
    as_json: Json = False,
) -> None:
    """Put a backup into a pool, which is made where there is none. May be repeated."""
    from rlep.cli.pool.files import put_back

    put_back(which.config(), source, as_json=as_json)


@on_pool(pool_app, "verify", "Keep in order")
def verify(
    which: Which,
    *,
    data: Data = None,
    dry_run: DryRun = False,
    other_verifier: Annotated[
        bool, typer.Option(help="Quarantine though the pool was graded under another verifier.profile.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="File for the differences.")] = None,
    as_json: Json = False,
) -> None:
    """Grade every answer again with the present verifier; what no longer passes is quarantined."""
    from rlep.cli.pool.maintain import verify as run
    from rlep.cli.pool.open import files_of

    config = which.config()
    run(
        config,
        files_of(config, data),
        dry_run=dry_run,
        other_verifier=other_verifier,
        out=out,
        as_json=as_json,
    )


@on_pool(pool_app, "prune", "Keep in order")
def prune(
    which: Which,
    *,
    policy: Annotated[
        str | None, typer.Option(metavar="DIGEST@VERSION", help="Of these policies; * and ? stand for anything.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(metavar="NAME@VERSION", help="Of these verifiers; * and ? stand for anything.")
    ] = None,
    older_than: Annotated[float | None, typer.Option(min=0, metavar="DAYS", help="Older than this.")] = None,
    keep: Annotated[int, typer.Option(min=0, help="Leave each question at least so many answers.")] = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the trajectories that meet all criteria given; pinned ones stay."""
    from rlep.cli.pool.maintain import prune_pool

    config = which.config()
    prune_pool(
        config,
        policy=policy,
        verifier=verifier,
        older_than=older_than,
        keep=keep,
        dry_run=dry_run,
        as_json=as_json,
    )


@on_pool(pool_app, "seal", "Keep in order")
def seal(
    which: Which,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Close a pool for good, and print the digest that names its content."""
    from rlep.cli.pool.maintain import seal as run

    config = which.config()
    if not yes:
        typer.confirm(f"Nothing can be added to pool {config.pool.name} afterwards. Seal it?", abort=True, err=True)
    run(config, as_json=as_json)


@on_pool(pool_app, "doctor", "Keep in order")
def doctor(
    which: Which,
    *,
    mend: Annotated[bool, typer.Option("--mend", help="Take damaged records out.")] = False,
    as_json: Json = False,
) -> None:
    """Check the server, the seal and every record; exit status 1 when something is wrong."""
    from rlep.cli.pool.maintain import doctor as run

    raise typer.Exit(run(which.config(), mend=mend, as_json=as_json))


@pool_app.command("serve", rich_help_panel="Serve")
@command_errors
def serve(
    *,
    embedded: Annotated[Path | None, typer.Option(metavar="DIR", help="Start a Redis of its own over DIR.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="redis://, rediss:// or unix://.")] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0: a free one.")] = "127.0.0.1:7171",
    pool: Annotated[str, typer.Option(metavar="NAME", help="The pool of callers that name none.")] = "pool",
    token_file: Annotated[
        Path | None, typer.Option(help="Lines [ROLE[@POOL]] TOKEN; made with one admin token if there is none.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Let in only clients of this authority.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Calls a second of one token.")] = 1000,
    cache_mib: Annotated[int, typer.Option(min=0, help="Memory for records that are drawn again.")] = 256,
) -> None:
    """Serve the pools of one Redis over gRPC; prints the address when it is healthy."""
    from rlep.cli.pool.serve import serve as run
    from rlep.cli.pool.serve import tls_of
    from rlep.services.pool.rpc.server import ServerOptions

    tls = tls_of(tls_cert, tls_key, tls_client_ca)
    run(embedded, redis, ServerOptions(listen, pool, token_file, tls, rate, cache_mib << 20))
