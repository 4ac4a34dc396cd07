"""``rlep pool verify | prune | seal | doctor``: a pool kept in order."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.cli.pool.which import KEEP, Data, DryRun, Json, about_a_pool, pool_app

if TYPE_CHECKING:
    from rlep.check.finding import Finding
    from rlep.config.schema import Config
    from rlep.services.pool.maintenance.check_records import Checked
    from rlep.services.pool.maintenance.reverify import Difference, Reverified
    from rlep.services.pool.pool import Pool
    from rlep.services.verifier.base import BaseVerifier

DAY = 86400.0


@pool_app.command(rich_help_panel=KEEP)
@about_a_pool
def verify(
    config: Config,
    *,
    data: Data = None,
    dry_run: DryRun = False,
    other_verifier: Annotated[
        bool, typer.Option(help="Quarantine though the pool was graded under another verifier.profile.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="File for the differences.")] = None,
    as_json: Json = False,
) -> None:
    """Grade every response again with the present verifier; what no longer passes is quarantined."""
    from rlep.cli.pool.open import (
        changing,
        file_errors,
        files_of,
        matching_tokenizer,
        opening_of,
        question_rows,
        reading,
        verifier_of,
    )
    from rlep.cli.progress import TerminalProgress
    from rlep.services.pool.maintenance.reverify import reverify

    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(reading(config) if dry_run else changing(config))
        verifier = stack.enter_context(verifier_of(config))
        if not (dry_run or other_verifier):
            _check_verifier(pool, verifier)
        tokenizer = matching_tokenizer(config, pool)
        references, openings = {}, {}
        for prompt_id, row in question_rows(files_of(config, data), bars):
            references[prompt_id], openings[prompt_id] = row.reference, opening_of(config, tokenizer, row)
        if out is not None:
            stack.enter_context(file_errors(out))
        file = None if out is None else stack.enter_context(out.open("w", encoding="utf-8"))

        def report(difference: Difference) -> None:
            if file is not None:
                file.write(json.dumps(asdict(difference)) + "\n")
            elif not as_json:
                typer.echo(_sentence(difference))

        advance = stack.enter_context(bars.phase("verify", pool.stats().trajectories, "answers"))
        found = reverify(
            pool,
            references,
            tokenizer,
            verifier,
            quarantine=not dry_run,
            report=report,
            openings=openings,
            advance=advance,
        )
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"statuses": dict(found.statuses)}, indent=2))
    else:
        _show_verified(found, verifier)


def _check_verifier(pool: Pool, verifier: BaseVerifier) -> None:
    """Refuse to quarantine what another kind of verifier accepted: the responses may only be formatted otherwise."""
    from rlep.core.errors import ConfigError

    others = sorted({name for name in pool.stats().by_verifier if name.rpartition("@")[0] != verifier.name})
    if others:
        raise ConfigError(
            f"pool {pool.name} holds verdicts of {', '.join(others)}, verifier.profile is {verifier.name}: set it to "
            "the pool's, look first with --dry-run, or quarantine by another verifier with --other-verifier"
        )


def _sentence(difference: Difference) -> str:
    before, after = difference.before, difference.after
    return (
        f"{difference.content_id}  (prompt {difference.prompt_id}): {before.status} {before.extracted!r:.60} by "
        f"{before.verifier} {before.version} → {after.status} {after.extracted!r:.60}"
        + (f", score {before.credit:g} → {after.credit:g}" if after.score is not None else "")
        + (", quarantined" if difference.quarantined else "")
    )


def _show_verified(found: Reverified, verifier: BaseVerifier) -> None:
    from rlep.cli.tables import show_table
    from rlep.core.plural import counted

    typer.echo(f"{counted(found.graded, 'answer')} graded by {verifier.name} {verifier.version}")
    show_table([{"verdict": status, "answers": str(count)} for status, count in found.statuses.most_common()])
    if found.reread:
        typer.echo(f"{found.reread} with the same verdict, by another text or with another score than before")
    if found.unknown:
        typer.echo(
            f"{counted(found.unknown, 'answer')} to {counted(found.unknown_questions, 'question')} that these files do not "
            "have: not graded"
        )
    typer.echo(f"{found.quarantined} quarantined")


@pool_app.command(rich_help_panel=KEEP)
@about_a_pool
def prune(
    config: Config,
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
) -> None:
    """Remove the trajectories that meet all criteria given."""
    from rlep.cli.pool.open import changing, reading
    from rlep.cli.progress import TerminalProgress
    from rlep.core.plural import counted
    from rlep.services.pool.maintenance.prune import Criteria
    from rlep.services.pool.maintenance.prune import prune as prune_pool

    before = None if older_than is None else time.time() - older_than * DAY
    criteria = Criteria(policy, verifier, before, keep)
    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(reading(config) if dry_run else changing(config))
        advance = stack.enter_context(bars.phase("prune", pool.stats().trajectories, "records"))
        found = prune_pool(pool, criteria, dry_run=dry_run, advance=advance)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"dry_run": dry_run}, indent=2))
        return
    typer.echo(
        f"{'would remove' if dry_run else 'removed'} {found.removed} of {counted(found.examined, 'trajectory')}; "
        f"left without answers: {counted(found.emptied, 'question')}"
    )


@pool_app.command(rich_help_panel=KEEP)
@about_a_pool
def seal(
    config: Config,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Close a pool for good, and print the digest that names its content."""
    from rlep.cli.pool.open import changing

    if not yes:
        typer.confirm(f"Nothing can be added to pool {config.pool.name} afterwards. Seal it?", abort=True, err=True)
    with changing(config) as pool:
        digest = pool.seal()
    typer.echo(json.dumps({"digest": digest}) if as_json else f"pool {pool.name} is sealed with digest {digest}")


@pool_app.command(rich_help_panel=KEEP)
@about_a_pool
def doctor(
    config: Config,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged records.")] = False,
    as_json: Json = False,
) -> None:
    """Check the server, the seal and every record; exit status 1 when something is wrong."""
    from rlep.check.finding import Finding
    from rlep.cli.check import show_findings
    from rlep.cli.pool.open import changing, reading
    from rlep.cli.progress import TerminalProgress
    from rlep.core.errors import RlepError
    from rlep.services.pool.maintenance.check_records import check_records

    findings: list[Finding] = []
    try:
        with TerminalProgress() as bars, changing(config) if repair else reading(config) as pool:
            findings += _state(pool)
            compared, models = _tokenizer(config, pool)
            findings.append(compared)
            vocabulary = pool.vocabulary or models
            with bars.phase("check records", pool.stats().trajectories, "records") as advance:
                findings += _records(
                    check_records(pool, repair=repair, vocabulary=vocabulary, advance=advance), vocabulary
                )
        if not repair:
            with changing(config):
                findings.append(Finding("writes", "ok", "the server keeps what it acknowledges and takes more"))
    except RlepError as error:
        findings.append(Finding(f"pool {config.pool.name}", "wrong", str(error)))
    raise typer.Exit(show_findings(findings, as_json=as_json))


def _state(pool: Pool) -> list[Finding]:
    from rlep.check.finding import Finding

    used, limit = pool.memory()
    room = f"{used / 1e6:.1f} MB used" + (f" of {limit / 1e6:.1f} MB" if limit else ", no limit set")
    sealed = f"sealed with {pool.sealed}, which its content matches" if pool.sealed else "open"
    return [
        Finding("server", "ok", f"answers in {1000 * pool.ping():.2f} ms"),
        Finding("memory", "ok", room),
        Finding("pool", "ok", f"{pool.name}, {sealed}, digest {pool.digest()}, tokenizer {pool.tokenizer_digest}"),
    ]


def _tokenizer(config: Config, pool: Pool) -> tuple[Finding, int | None]:
    """Whether model.path has the tokenizer that the pool's writer stated; then the model's vocabulary."""
    from rlep.check.finding import Finding
    from rlep.core.errors import ModelError
    from rlep.engines.tokenizer import load_tokenizer, vocabulary_size

    stated, path = f"the pool's writer stated {pool.tokenizer_digest}", config.model.path
    remedy = (
        "set model.path to the model that wrote the responses; a Python client states its tokenizer as "
        "Provenance.tokenizer_digest = rlep.load_tokenizer(MODEL_DIR).digest"
    )
    try:
        found = load_tokenizer(path).digest
    except ModelError:
        detail = f"{stated}; not compared, for model.path = {path} has no tokenizer"
        return Finding("tokenizer", "ok", detail, remedy), None
    if found != pool.tokenizer_digest:
        detail = f"{stated}; model.path = {path} has {found}: a run with this model refuses the pool"
        return Finding("tokenizer", "ok", detail, remedy), None
    return Finding("tokenizer", "ok", f"that of model.path = {path}"), vocabulary_size(path)


def _records(found: Checked, vocabulary: int | None) -> list[Finding]:
    from rlep.check.finding import Finding
    from rlep.core.plural import counted

    findings = []
    if vocabulary is None:
        detail = "not checked whether token ids exist: nobody stated the pool's number of ids, and its model is not known here"
        remedy = (
            "set model.path to the model that wrote the responses; a Python client states it as PoolClient(vocabulary=)"
        )
        findings.append(Finding("vocabulary", "ok", detail, remedy))
    if found.records == found.counted:
        findings.append(
            Finding("counters", "ok", f"{counted(found.counted, 'trajectory')}, {found.quarantined} quarantined")
        )
    else:
        detail = f"records: {found.records}, by the counters: {found.counted}"
        findings.append(
            Finding(
                "counters",
                "ok",
                detail,
                "harmless while somebody writes; else export the pool and import it under a new name",
            )
        )
    if not found.damaged:
        return [*findings, Finding("records", "ok", f"every checksum and content id matches{_below(vocabulary)}")]
    first = "; ".join(f"{content_id} of prompt {prompt}: {reason}" for prompt, content_id, reason in found.examples[:5])
    mended = found.removed == found.damaged
    remedy = (
        ""
        if mended
        else "rlep pool doctor --repair removes them; importing an earlier export brings those back that were whole in it"
    )
    return [
        *findings,
        Finding(
            "records", "ok" if mended else "wrong", f"{found.damaged} damaged, {found.removed} removed: {first}", remedy
        ),
    ]


def _below(vocabulary: int | None) -> str:
    return "; token ids were not checked" if vocabulary is None else f"; every token id is below {vocabulary}"
