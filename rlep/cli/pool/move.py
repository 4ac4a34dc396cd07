"""``rlep pool export | import``: a pool in files, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlep.cli.pool.which import MOVE, Data, Json, about_a_pool, pool_app

if TYPE_CHECKING:
    from rlep.cli.progress import TerminalProgress
    from rlep.config.schema import Config
    from rlep.data.prompt_rows import PromptRow
    from rlep.engines.tokenizer import Tokenizer
    from rlep.services.pool.files.imported import Imported
    from rlep.services.pool.rpc.client import PoolClient

QUESTIONS_A_READ = 64
Form = Literal["parquet", "candidates"]
"""A directory of shards, or one prompt file with the responses as texts."""


@pool_app.command(rich_help_panel=MOVE)
@about_a_pool
def export(
    config: Config,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory, or for candidates a .parquet or .jsonl file.")],
    *,
    form: Annotated[
        Form,
        typer.Option("--as", help="parquet: every field, shards with a manifest. candidates: texts in a prompt file."),
    ] = "parquet",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write a pool to files. An export that was interrupted starts again."""
    from rlep.cli.pool.open import existing, file_errors, files_of
    from rlep.cli.progress import TerminalProgress
    from rlep.core.plural import counted
    from rlep.services.pool.files.records import export_records

    with file_errors(out), TerminalProgress() as bars, existing(config) as pool:
        if form == "candidates":
            written = _export_texts(config, pool, out, files_of(config, data), bars)
            left = len(pool.prompt_ids()) - written
            text = f"{counted(written, 'question')} with answers in {out}; {left} of the pool's not in these question files"
            _tell({"file": str(out), "questions": written, "left_out": left}, text, as_json)
            return
        with bars.phase("export", pool.stats().trajectories, "records") as advance:
            manifest = export_records(pool, out, advance=advance)
        summary = {
            "directory": str(out),
            "records": manifest.records,
            "shards": len(manifest.shards),
            "digest": manifest.digest,
        }
        _tell(
            summary,
            f"{counted(manifest.records, 'record')} in {counted(len(manifest.shards), 'shard')} in {out}",
            as_json,
        )


def _export_texts(config: Config, pool: PoolClient, out: Path, data: Sequence[Path], bars: TerminalProgress) -> int:
    """Questions that have responses, with these as texts, in the authors' schema; appears as a whole or not at all."""
    from rlep.check.prompts_shown import wanted_of
    from rlep.cli.pool.open import matching_tokenizer, question_rows
    from rlep.core.errors import DataError
    from rlep.data.prompt_files import write_verl

    if out.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"{out}: the authors' form is one file, name it .parquet or .jsonl")
    tokenizer = matching_tokenizer(config, pool)
    return write_verl(
        out,
        _with_responses(pool, tokenizer, question_rows(data, bars, wanted_of(config))),
        split="train",
        candidates=True,
    )


def _with_responses(
    pool: PoolClient, tokenizer: Tokenizer, rows: Iterator[tuple[str, PromptRow]]
) -> Iterator[PromptRow]:
    """The rows whose questions have responses in the pool, each with these."""
    from rlep.services.pool.files.texts import texts_of

    while some := dict(islice(rows, QUESTIONS_A_READ)):
        for prompt_id, texts in texts_of(pool, list(some), tokenizer).items():
            yield replace(some[prompt_id], candidates=texts)


@pool_app.command("import", rich_help_panel=MOVE)
@about_a_pool
def import_(
    config: Config,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="An export's directory, or a prompt file with candidates.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Put files into a pool; texts are tokenised for model.path and graded first. May be repeated.

    The export of a sealed pool seals the pool, if it then has the same content.
    """
    from rlep.services.pool.files.manifest import MAX_SHARD, check_plain

    if source.is_dir():
        report = import_directory(config, source)
    else:
        check_plain(source, MAX_SHARD)
        report = _import_texts(config, source)
    tell_imported(report, str(source), as_json=as_json)


def tell_imported(report: Imported, source: str, *, as_json: bool) -> None:
    """Print what an import did."""
    summary = asdict(report) | {"refused": dict(report.refused), "source": source}
    _tell(
        summary,
        f"{report.inserted} inserted, {report.duplicates} there before, {report.refused.total()} refused"
        + (f"; sealed with digest {report.sealed}" if report.sealed else ""),
        as_json,
    )
    if not as_json:
        _show_refused(report)


def import_directory(config: Config, source: Path) -> Imported:
    """Put an export's records into the pool, which is made where there is none."""
    from rlep.cli.pool.open import filling
    from rlep.cli.progress import TerminalProgress
    from rlep.services.pool.files.manifest import read_manifest
    from rlep.services.pool.files.records import import_records

    manifest = read_manifest(source)
    with (
        TerminalProgress() as bars,
        filling(
            config, manifest.tokenizer_digest, cap=manifest.cap, vocabulary=manifest.vocabulary, from_manifest=True
        ) as pool,
        bars.phase("import", manifest.records, "records") as advance,
    ):
        return import_records(pool, source, advance=advance)


def _import_texts(config: Config, source: Path) -> Imported:
    from rlep.check.prompts_shown import wanted_of
    from rlep.cli.pool.open import filling, opening_of, question_rows
    from rlep.cli.progress import TerminalProgress
    from rlep.core.errors import DataError
    from rlep.engines.tokenizer import load_tokenizer, vocabulary_size
    from rlep.hub.resolve import model_directory
    from rlep.services.pool.files.texts import TextAnswers, import_texts
    from rlep.services.verifier.grader import configured_verifier

    model = model_directory(config.model, weights=False)
    tokenizer = load_tokenizer(model, config.model)
    with ExitStack() as stack:
        bars = stack.enter_context(TerminalProgress())
        pool = stack.enter_context(filling(config, tokenizer.digest, vocabulary=vocabulary_size(model)))
        verifier = stack.enter_context(configured_verifier(config.verifier, workers=config.verifier.workers))
        advance = stack.enter_context(bars.phase("grade", None, "questions"))
        rows = question_rows([source], bars, wanted_of(config, candidates=True, columns=verifier.asks))
        questions = (
            TextAnswers(prompt_id, row.reference, row.candidates, opening_of(tokenizer, row), row.asked)
            for prompt_id, row in rows
            if row.candidates
        )
        limit = config.rollout.max_tokens
        report = import_texts(
            pool, questions, tokenizer, verifier.grade_pairs, max_tokens=limit, source=source.name, advance=advance
        )
    if not report.inserted + report.duplicates + report.refused.total():
        raise DataError(f"{source}: no row has candidates, answers as texts in reward_model.candidates or candidates")
    return report


def _show_refused(report: Imported) -> None:
    from rlep.cli.tables import show_table

    show_table([{"refused because": reason, "answers": str(n)} for reason, n in report.refused.most_common(20)])
    for name, reason in report.examples:
        typer.echo(f"  {name}: {reason}")


def _tell(summary: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(summary, indent=2) if as_json else text)
