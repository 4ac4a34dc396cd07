"""Run directories as values. A file that is missing, unfinished or broken becomes a note, never a crash."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlep.core.errors import DataError
from rlep.core.jsonl import read_lines
from rlep.metrics.spans import Span, spans_of

Role = Literal["baseline", "rlep", "control", "collection"]
ALL = "all"
PHASES = ("generate", "verify", "replay", "score", "update", "publish")
"""Parts of a step in their order; ``time/<phase>`` each."""
RLEP, LIVE = "RLEP", "live replay"
"""What a run with replays is called."""


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """One training step's metrics; values that were NaN or infinite are left out."""

    step: int
    wall_s: float
    numbers: Mapping[str, float]
    lists: Mapping[str, tuple[float, ...]]


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
    """What a collection covered, from ``collection.json``."""

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
    lines: tuple[MetricsRow, ...]
    evaluations: tuple[EvaluationPoint, ...]
    events: Mapping[str, int]
    """How often each event happened."""
    collection: CollectionFiles | None
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    spans: tuple[Span, ...]
    """Who did what in the last steps; empty while the run goes on."""
    notes: tuple[str, ...]
    """What is missing or broken, in words."""


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
    """What the run with replays that is compared with the baseline is called; ``RLEP`` without one."""
    sources = (_at(record.config, "replay", "source") for record in records if record.role == "rlep")
    return LIVE if next(sources, None) == "live" else RLEP


def compute_at(run: RunRecord, step: int) -> float | None:
    """Compute of a run's first ``step`` steps; None where it was not recorded."""
    if step == 0:
        return 0.0 if any("compute/trained_tokens" in line.numbers for line in run.lines) else None
    for line in run.lines:
        if line.step == step - 1 and "compute/trained_tokens" in line.numbers:
            return compute_of_line(line.numbers)
    return None


def compute_of_line(numbers: Mapping[str, float]) -> float:
    """Generated + scored + 3 × trained tokens: a forward pass counts 1 a token, a forward and backward pass 3."""
    return (
        numbers["compute/generated_tokens"] + numbers["compute/scored_tokens"] + 3 * numbers["compute/trained_tokens"]
    )


def load_run(directory: Path, *, taken: set[Role]) -> RunRecord:
    """The record of one directory; the first run without replays is the baseline, the first with replays is RLEP."""
    notes: list[str] = []
    config = _object(directory / "config.json", notes)
    manifest = _object(directory / "manifest.json", notes)
    lines = tuple(filter(None, map(_line, _lines(directory / "metrics.jsonl", notes))))
    evaluations = tuple(filter(None, map(_evaluated, _lines(directory / "evaluations.jsonl", notes))))
    happened = _lines(directory / "events.jsonl", notes)
    collection = _collection(directory / "collection.json", notes)
    replays = _integer(_at(config, "replay", "count")) or 0
    return RunRecord(
        directory=directory,
        label=str(_at(config, "run", "name") or directory.name),
        role=_role(manifest.get("command"), replays, taken, only_collection=bool(collection) and not lines),
        fresh=_integer(_at(config, "rollout", "fresh")),
        replays=replays,
        planned_steps=_integer(_at(config, "run", "steps")),
        finished=any(event.get("event") == "run_finished" for event in happened),
        lines=lines,
        evaluations=evaluations,
        events=Counter(str(event.get("event")) for event in happened),
        collection=collection,
        config=config,
        manifest=manifest,
        spans=_spans(directory / "timeline.json", notes),
        notes=tuple(notes),
    )


def _role(command: object, replays: int, taken: set[Role], *, only_collection: bool) -> Role:
    if only_collection or command == "collect":
        return "collection"
    role: Role = "rlep" if replays else "baseline"
    return "control" if command == "sft" or role in taken else role


def _line(raw: Mapping[str, Any]) -> MetricsRow | None:
    step, wall_s, metrics = _integer(raw.get("step")), _number(raw.get("wall_s")), raw.get("metrics")
    if step is None or not isinstance(metrics, Mapping):
        return None
    numbers = {name: number for name, v in metrics.items() if (number := _number(v)) is not None}
    lists = {
        name: tuple(_number(v) or 0.0 for v in values) for name, values in metrics.items() if isinstance(values, list)
    }
    return MetricsRow(step, wall_s or 0.0, numbers, lists)


def _evaluated(raw: Mapping[str, Any]) -> EvaluationPoint | None:
    step, avg = _integer(raw.get("step")), _number(raw.get("avg"))
    if step is None or avg is None:
        return None
    interval = raw.get("ci")
    low, high = map(_number, interval) if isinstance(interval, list) and len(interval) == 2 else (None, None)
    passes = raw.get("pass")
    return EvaluationPoint(
        step=step,
        wall_s=_number(raw.get("wall_s")) or 0.0,
        data_source=str(raw.get("data_source") or "held-out"),
        samples=_integer(raw.get("n")) or 1,
        avg=avg,
        low=low,
        high=high,
        maj=_number(raw.get("maj")),
        best=_number(raw.get("best")),
        passes=_passes(passes) if isinstance(passes, Mapping) else {},
    )


def _passes(raw: Mapping[str, Any]) -> dict[int, float]:
    return {int(k): share for k, v in raw.items() if k.isdecimal() and (share := _number(v)) is not None}


def _spans(path: Path, notes: list[str]) -> tuple[Span, ...]:
    if not path.exists():
        return ()
    raw = _object(path, notes)
    try:
        return tuple(spans_of(raw)) if raw else ()
    except ValueError as error:
        notes.append(f"{path.name}: {error}")
        return ()


def _collection(path: Path, notes: list[str]) -> CollectionFiles | None:
    if not path.exists():
        return None
    raw = _object(path, notes)
    questions = _integer(raw.get("questions"))
    if not questions:
        return None
    buckets = raw.get("buckets")
    return CollectionFiles(
        questions=questions,
        covered=_integer(raw.get("covered")),
        eligible=_integer(raw.get("eligible")),
        admitted=_integer(raw.get("admitted")),
        minimum=_integer(raw.get("minimum")) or 1,
        buckets=tuple(_buckets(buckets)) if isinstance(buckets, Mapping) else (),
        wall_s=_number(raw.get("wall_s")),
    )


def _buckets(raw: Mapping[str, Any]) -> Iterator[Bucket]:
    for label, questions in raw.items():
        fewest = re.match(r"\d+", label)
        if fewest and isinstance(questions, int):
            yield Bucket(label, int(fewest[0]), questions)


def _object(path: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
        return {}
    except ValueError as error:
        notes.append(f"{path.name} is not JSON: {error}")
        return {}
    if not isinstance(raw, dict):
        notes.append(f"{path.name} is not a JSON object")
        return {}
    return raw


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        return read_lines(path)
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except DataError as error:
        notes.append(f"{path.name} cannot be read: {error}")
    return []


def _at(config: Mapping[str, Any], section: str, key: str) -> object:
    found = config.get(section)
    return found.get(key) if isinstance(found, Mapping) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    """Of what is no finite number: None."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)
