"""Run directories as values. A file that is missing, unfinished or broken becomes a note, never a crash."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlep.core.errors import DataError
from rlep.metrics.catalogue import compute_of
from rlep.metrics.spans import Span, spans_of
from rlep.view.run_files import MOST_BYTES, RunPlace, number_of, read_json, read_tail, section_of
from rlep.view.steps import StepTable, read_steps

Role = Literal["baseline", "rlep", "control", "collection"]
ALL = "all"
PHASES = ("generate", "verify", "replay", "score", "update", "publish")
"""Parts of a step in their order; ``time/<phase>`` each."""
RLEP, LIVE = "RLEP", "live replay"
"""Names of a run with replays."""
MOST_SOURCES = 32
"""Data sources, and numbers of samples k of pass@k, that are drawn."""
COMPUTE = ("compute/generated_tokens", "compute/scored_tokens", "compute/trained_tokens")
"""Metrics of compute so far, in the order of ``compute_of``."""
_COUNT = re.compile("[0-9]{1,9}(?![0-9])")


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One row of ``evaluations.jsonl``; shares in 0…1."""

    step: int
    wall_s: float
    data_source: str
    samples: int
    avg: float
    low: float | None
    high: float | None
    maj: float | None
    best: float | None
    passes: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Questions with about equally many stored responses."""

    label: str
    """``0``, ``1``, ``2-3``, …"""
    fewest: int
    questions: int


@dataclass(frozen=True, slots=True)
class CollectionFiles:
    """Coverage of a collection, from ``collection.json``."""

    questions: int
    covered: int | None
    """Questions with at least one stored response."""
    eligible: int | None
    """Questions with at least ``minimum`` stored responses: those that are replayed."""
    admitted: int | None
    """Stored responses."""
    minimum: int
    buckets: tuple[Bucket, ...]
    wall_s: float | None
    """Seconds the collection took, interruptions not counted."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything the report shows of one run directory."""

    directory: Path
    label: str
    role: Role
    fresh: int | None
    """G."""
    replays: int
    """M."""
    planned_steps: int | None
    finished: bool
    table: StepTable
    evaluations: tuple[EvaluationPoint, ...]
    events: Mapping[str, int]
    """Event → times that it happened."""
    collection: CollectionFiles | None
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    spans: tuple[Span, ...]
    """Work of each actor in the last steps; empty where the run wrote no timeline."""
    notes: tuple[str, ...]
    """Missing and broken parts, in words."""


def load_runs(directories: Sequence[Path]) -> list[RunRecord]:
    """One record per run directory, in order. DataError for a path that is not a directory, or when there is none."""
    if not directories:
        raise DataError("a report needs at least one run directory")
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory} is not a run directory: there is no such folder")
    records: list[RunRecord] = []
    for directory in directories:
        records.append(load_run(directory, taken={record.role for record in records}))
    return records


def method_of(records: Sequence[RunRecord]) -> str:
    """Name of the method of the run with replays that is compared with the baseline; ``RLEP`` without one."""
    sources = (section_of(record.config, "replay").get("source") for record in records if record.role == "rlep")
    return LIVE if next(sources, None) == "live" else RLEP


def compute_at(table: StepTable, step: int) -> float | None:
    """Compute of a run's first ``step`` steps; None where it was not recorded."""
    if not all(name in table.columns for name in COMPUTE):
        return None
    if step == 0:
        return 0.0
    at = bisect_left(table.steps, step - 1)
    if at == len(table) or table.steps[at] != step - 1:
        return None
    return compute_of_line(table.line(at).numbers)


def compute_of_line(numbers: Mapping[str, float]) -> float | None:
    """Compute by the metrics of a line; None where one is missing."""
    return compute_of(*(numbers[name] for name in COMPUTE)) if all(name in numbers for name in COMPUTE) else None


def load_run(directory: Path, *, taken: set[Role]) -> RunRecord:
    """The record of one directory; the first run without replays is the baseline, the first with replays is RLEP."""
    place = RunPlace(directory.name, directory)
    table, notes = read_steps(place, whole=True)
    config, config_notes = read_json(place, "config.json", MOST_BYTES)
    manifest, manifest_notes = read_json(place, "manifest.json", MOST_BYTES)
    evaluations, evaluation_notes = read_evaluations(place)
    happened = read_tail(place, "events.jsonl", MOST_BYTES)
    collection, collection_notes = _collection(place)
    spans, span_notes = read_spans(place)
    run, rollout = section_of(config, "run"), section_of(config, "rollout")
    replays = _integer(section_of(config, "replay").get("count")) or 0
    return RunRecord(
        directory=directory,
        label=str(run.get("name") or directory.name),
        role=_role(manifest.get("command"), replays, taken, only_collection=bool(collection) and not len(table)),
        fresh=_integer(rollout.get("fresh")),
        replays=replays,
        planned_steps=_integer(run.get("steps")),
        finished=any(event.get("event") == "run_finished" for event in happened.lines),
        table=table,
        evaluations=evaluations,
        events=Counter(str(event.get("event")) for event in happened.lines),
        collection=collection,
        config=config,
        manifest=manifest,
        spans=spans,
        notes=(
            *config_notes, *manifest_notes, *notes, *evaluation_notes, *happened.notes, *collection_notes,
            *(note for note in span_notes if not note.endswith(" is missing")),
        ),
    )  # fmt: skip


def read_evaluations(place: RunPlace) -> tuple[tuple[EvaluationPoint, ...], tuple[str, ...]]:
    """The rows of ``evaluations.jsonl``, oldest first, and notes on what could not be read."""
    read = read_tail(place, "evaluations.jsonl", MOST_BYTES)
    return tuple(filter(None, map(evaluation_of, read.lines))), read.notes


def by_source(evaluations: Sequence[EvaluationPoint]) -> dict[str, list[EvaluationPoint]]:
    """Data source → its evaluations, of the first ``MOST_SOURCES`` in the order of their names."""
    found: dict[str, list[EvaluationPoint]] = {}
    for row in evaluations:
        found.setdefault(row.data_source, []).append(row)
    return dict(sorted(found.items())[:MOST_SOURCES])


def headline_source(evaluations: Sequence[EvaluationPoint]) -> str | None:
    """``all`` where that is there, else the data source evaluated most often; None without evaluations."""
    counts = Counter(row.data_source for row in evaluations)
    if ALL in counts:
        return ALL
    return counts.most_common(1)[0][0] if counts else None


def _role(command: object, replays: int, taken: set[Role], *, only_collection: bool) -> Role:
    if only_collection or command == "collect":
        return "collection"
    role: Role = "rlep" if replays else "baseline"
    return "control" if command == "sft" or role in taken else role


def evaluation_of(raw: Mapping[str, Any]) -> EvaluationPoint | None:
    """A line of ``evaluations.jsonl``; None where it has no step or no accuracy."""
    step, avg = _integer(raw.get("step")), number_of(raw.get("avg"))
    if step is None or avg is None:
        return None
    interval = raw.get("ci")
    low, high = map(number_of, interval) if isinstance(interval, list) and len(interval) == 2 else (None, None)
    passes = raw.get("pass")
    return EvaluationPoint(
        step=step,
        wall_s=number_of(raw.get("wall_s")) or 0.0,
        data_source=str(raw.get("data_source") or "held-out"),
        samples=_integer(raw.get("n")) or 1,
        avg=avg,
        low=low,
        high=high,
        maj=number_of(raw.get("maj")),
        best=number_of(raw.get("best")),
        passes=_passes(passes) if isinstance(passes, Mapping) else {},
    )


def _passes(raw: Mapping[str, Any]) -> dict[int, float]:
    return {int(k): share for k, v in raw.items() if _COUNT.fullmatch(k) and (share := number_of(v)) is not None}


def read_spans(place: RunPlace) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """The work that ``timeline.json`` tells of, and notes on what could not be read."""
    tree, notes = read_json(place, "timeline.json", MOST_BYTES)
    if notes:
        return (), notes
    try:
        return tuple(spans_of(tree)), ()
    except ValueError as error:
        return (), (f"timeline.json: {error}",)


def _collection(place: RunPlace) -> tuple[CollectionFiles | None, tuple[str, ...]]:
    raw, notes = read_json(place, "collection.json", MOST_BYTES)
    questions = _integer(raw.get("questions"))
    if not questions:
        return None, tuple(note for note in notes if not note.endswith(" is missing"))
    found = CollectionFiles(
        questions=questions,
        covered=_integer(raw.get("covered")),
        eligible=_integer(raw.get("eligible")),
        admitted=_integer(raw.get("admitted")),
        minimum=_integer(raw.get("minimum")) or 1,
        buckets=tuple(_buckets(section_of(raw, "buckets"))),
        wall_s=number_of(raw.get("wall_s")),
    )
    return found, ()


def _buckets(raw: Mapping[str, Any]) -> Iterator[Bucket]:
    for label, questions in raw.items():
        fewest = _COUNT.match(label)
        if fewest and _integer(questions) is not None:
            yield Bucket(label, int(fewest[0]), questions)


def _integer(value: object) -> int | None:
    found = number_of(value)
    return found if isinstance(found, int) else None
