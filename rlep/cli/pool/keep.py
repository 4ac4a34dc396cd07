"""``rlep pool verify | prune | seal``: a pool kept in order."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.cli.pool.which import KEEP, Data, DryRun, Json, about_a_pool, pool_app

if TYPE_CHECKING:
    from rlep.config.schema import Config
    from rlep.services.pool.maintenance.reverify import Difference, Reverified
    from rlep.services.pool.rpc.client import PoolClient
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
    from rlep.check.prompts_shown import wanted_of
    from rlep.cli.pool.open import existing, file_errors, files_of, matching_tokenizer, opening_of, question_rows
    from rlep.cli.progress import TerminalProgress
    from rlep.services.pool.maintenance.reverify import reverify
    from rlep.services.verifier.grader import configured_verifier

    files = files_of(config, data)
    _check_out(out, files)
    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(existing(config))
        verifier = stack.enter_context(configured_verifier(config.verifier, workers=config.verifier.workers))
        if not (dry_run or other_verifier):
            _check_verifier(pool, verifier)
        tokenizer = matching_tokenizer(config, pool)
        rows = dict(question_rows(files, bars, wanted_of(config, columns=verifier.asks)))
        openings = {prompt_id: opening_of(tokenizer, row) for prompt_id, row in rows.items()}
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
            {prompt_id: row.reference for prompt_id, row in rows.items()},
            tokenizer,
            verifier.grade_pairs,
            quarantine=not dry_run,
            report=report,
            openings=openings,
            asked={prompt_id: row.asked for prompt_id, row in rows.items()},
            advance=advance,
        )
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"statuses": dict(found.statuses)}, indent=2))
    else:
        _show_verified(found, verifier)


def _check_out(out: Path | None, files: Sequence[Path]) -> None:
    """Refuse to write the differences over the questions."""
    from rlep.core.errors import DataError

    if out is not None and out.exists() and any(file.exists() and out.samefile(file) for file in files):
        raise DataError(f"--out {out} is a file of the questions; name another")


def _check_verifier(pool: PoolClient, verifier: BaseVerifier) -> None:
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
    damaged: Annotated[bool, typer.Option("--damaged", help="Only damaged records, which `rlep check` names.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the trajectories that meet all criteria given."""
    from rlep.cli.pool.open import existing
    from rlep.cli.progress import TerminalProgress
    from rlep.core.plural import counted
    from rlep.services.pool.maintenance.prune import Criteria
    from rlep.services.pool.maintenance.prune import prune as prune_pool

    if damaged:
        if policy or verifier or older_than is not None or keep:
            raise typer.BadParameter("--damaged removes every damaged record: give no other criterion")
        _remove_damaged(config, dry_run=dry_run, as_json=as_json)
        return
    before = None if older_than is None else time.time() - older_than * DAY
    criteria = Criteria(policy, verifier, before, keep)
    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(existing(config))
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
    from rlep.cli.pool.open import existing

    with existing(config) as pool:
        if not yes:
            typer.confirm(f"Nothing can be added to pool {pool.name} afterwards. Seal it?", abort=True, err=True)
        digest = pool.seal()
    typer.echo(json.dumps({"digest": digest}) if as_json else f"pool {pool.name} is sealed with digest {digest}")


def _remove_damaged(config: Config, *, dry_run: bool, as_json: bool) -> None:
    from rlep.check.pool_records import known_vocabulary
    from rlep.cli.pool.open import existing
    from rlep.cli.progress import TerminalProgress
    from rlep.core.plural import counted
    from rlep.services.pool.maintenance.check_records import check_records

    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(existing(config))
        advance = stack.enter_context(bars.phase("prune", pool.stats().trajectories, "records"))
        found = check_records(
            pool, repair=not dry_run, vocabulary=known_vocabulary(config, pool.stats()), advance=advance
        )
    removed, examined = found.damaged if dry_run else found.removed, found.records + found.quarantined
    if as_json:
        typer.echo(json.dumps({"examined": examined, "removed": removed, "dry_run": dry_run}, indent=2))
        return
    typer.echo(
        f"{'would remove' if dry_run else 'removed'} {counted(removed, 'damaged record')} of {examined}; importing an "
        "earlier export brings those back that were whole in it"
    )
