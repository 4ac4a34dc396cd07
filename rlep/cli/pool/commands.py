"""``rlep pool …``: every verb of an experience pool. Which pool: a run's config, or ``--redis`` or ``--embedded``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlep.cli.pool.which import Embedded, Files, Overrides, PoolName, RedisUrl, pool_config
from rlep.cli.shell import command_errors
from rlep.services.pool.files.manifest import Form

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


@pool_app.command("stats", rich_help_panel="Look")
@command_errors
def stats(
    files: Files = None,
    *,
    attach: Annotated[
        str | None, typer.Option(metavar="RUN", help="Ask the pool of a running run on the cluster, for counts only.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="Also count its questions without responses.")
    ] = None,
    questions: Annotated[int, typer.Option(min=0, help="Questions measured for the quantiles; 0 takes all.")] = 1024,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """What a pool holds: coverage, lengths, distinctness, memory, by policy and by verifier."""
    from rlep.cli.pool.inspect import show_stats

    config = pool_config(files, overrides, redis, name, embedded)
    show_stats(config, attach=attach, data=data, questions=questions, as_json=as_json)


@pool_app.command("browse", rich_help_panel="Look")
@command_errors
def browse(
    files: Files = None,
    *,
    data: Data = None,
    start: Annotated[str, typer.Option("--from", metavar="PROMPT_ID", help="Begin at this prompt id.")] = "",
    least: Annotated[int, typer.Option(min=1, help="Only questions with at least so many responses.")] = 1,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Page through questions and their decoded responses."""
    from rlep.cli.pool.inspect import browse as run

    config = pool_config(files, overrides, redis, name, embedded)
    run(config, data=data, start=start, least=least)


@pool_app.command("show", rich_help_panel="Look")
@command_errors
def show(
    identity: Identity,
    files: Files = None,
    *,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Print one question's responses, or one response, decoded where model.path has the tokenizer."""
    from rlep.cli.pool.inspect import show_record

    show_record(pool_config(files, overrides, redis, name, embedded), identity, as_json=as_json)


@pool_app.command("sample", rich_help_panel="Look")
@command_errors
def sample(
    files: Files = None,
    *,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="ID", help="May be repeated (default: every question).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Responses a question (default replay.count).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run (default run.seed).")] = None,
    step: Annotated[int, typer.Option(min=0, help="Training step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a question.")] = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Draw what a training step would draw: the same seed, step and questions give the same responses."""
    from rlep.cli.pool.inspect import show_sample

    config = pool_config(files, overrides, redis, name, embedded)
    show_sample(config, prompts or (), count=count, seed=seed, step=step, as_json=as_json)


@pool_app.command("export", rich_help_panel="Move")
@command_errors
def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory, or for candidates a .parquet or .jsonl file.")],
    files: Files = None,
    *,
    form: Annotated[
        Form,
        typer.Option("--as", help="parquet: every field, shards with a manifest. candidates: texts in a prompt file."),
    ] = "parquet",
    data: Data = None,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Write a pool to files. An export that was interrupted starts again."""
    from rlep.cli.pool.files import export as run
    from rlep.cli.pool.open import files_of

    config = pool_config(files, overrides, redis, name, embedded)
    run(config, out, form=form, data=files_of(config, data), as_json=as_json)


@pool_app.command("import", rich_help_panel="Move")
@command_errors
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="An export's directory, or a prompt file with candidates.")
    ],
    files: Files = None,
    *,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Put files into a pool; texts are tokenised for model.path and graded first. May be repeated.

    The export of a sealed pool seals the pool, if it then has the same content.
    """
    from rlep.cli.pool.files import import_ as run

    run(pool_config(files, overrides, redis, name, embedded), source, as_json=as_json)


@pool_app.command("verify", rich_help_panel="Keep in order")
@command_errors
def verify(
    files: Files = None,
    *,
    data: Data = None,
    dry_run: DryRun = False,
    other_verifier: Annotated[
        bool, typer.Option(help="Quarantine though the pool was graded under another verifier.profile.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="File for the differences.")] = None,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Grade every response again with the present verifier; what no longer passes is quarantined."""
    from rlep.cli.pool.maintain import verify as run
    from rlep.cli.pool.open import files_of

    config = pool_config(files, overrides, redis, name, embedded)
    run(
        config,
        files_of(config, data),
        dry_run=dry_run,
        other_verifier=other_verifier,
        out=out,
        as_json=as_json,
    )


@pool_app.command("prune", rich_help_panel="Keep in order")
@command_errors
def prune(
    files: Files = None,
    *,
    policy: Annotated[
        str | None, typer.Option(metavar="DIGEST@VERSION", help="Of these policies; * and ? stand for anything.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(metavar="NAME@VERSION", help="Of these verifiers; * and ? stand for anything.")
    ] = None,
    older_than: Annotated[float | None, typer.Option(min=0, metavar="DAYS", help="Older than this.")] = None,
    keep: Annotated[int, typer.Option(min=0, help="Leave each question at least so many responses.")] = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Remove the trajectories that meet all criteria given."""
    from rlep.cli.pool.maintain import prune_pool

    config = pool_config(files, overrides, redis, name, embedded)
    prune_pool(
        config,
        policy=policy,
        verifier=verifier,
        older_than=older_than,
        keep=keep,
        dry_run=dry_run,
        as_json=as_json,
    )


@pool_app.command("seal", rich_help_panel="Keep in order")
@command_errors
def seal(
    files: Files = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Close a pool for good, and print the digest that names its content."""
    from rlep.cli.pool.maintain import seal as run

    config = pool_config(files, overrides, redis, name, embedded)
    if not yes:
        typer.confirm(f"Nothing can be added to pool {config.pool.name} afterwards. Seal it?", abort=True, err=True)
    run(config, as_json=as_json)


@pool_app.command("doctor", rich_help_panel="Keep in order")
@command_errors
def doctor(
    files: Files = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged records.")] = False,
    as_json: Json = False,
    overrides: Overrides = None,
    redis: RedisUrl = None,
    name: PoolName = None,
    embedded: Embedded = None,
) -> None:
    """Check the server, the seal and every record; exit status 1 when something is wrong."""
    from rlep.cli.pool.maintain import doctor as run

    raise typer.Exit(run(pool_config(files, overrides, redis, name, embedded), repair=repair, as_json=as_json))


@pool_app.command("serve", rich_help_panel="Serve")
@command_errors
def serve(
    *,
    embedded: Annotated[Path | None, typer.Option(metavar="DIR", help="Start an embedded Redis over DIR.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="redis://, rediss:// or unix://.")] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0: a free one.")] = "127.0.0.1:7171",
    pool: Annotated[str, typer.Option(metavar="NAME", help="The pool of callers that name none.")] = "pool",
    token_file: Annotated[
        Path | None, typer.Option(help="Lines [ROLE[@POOL]] TOKEN; made with one admin token if there is none.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Let in only clients of this authority.")] = None,
) -> None:
    """Serve the pools of one Redis over gRPC; prints the address when it is healthy."""
    from rlep.cli.pool.serve import serve as run
    from rlep.cli.pool.serve import tls_of
    from rlep.services.pool.rpc.server import ServerOptions

    tls = tls_of(tls_cert, tls_key, tls_client_ca)
    run(embedded, redis, ServerOptions(listen, pool, token_file, tls))
