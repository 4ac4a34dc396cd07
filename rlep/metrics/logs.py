"""The append-only files of a run: metrics, evaluations, events."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlep.core.errors import DataError
from rlep.core.jsonl import JsonLines, read_lines
from rlep.metrics.catalogue import EVENTS, MetricValue, Number, Recorded, Tracker, flatten, metric_for
from rlep.metrics.delivery import Delivery


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """One line of ``metrics.jsonl``."""

    step: int
    time: float
    """Seconds since the epoch."""
    wall_s: float
    """Seconds the run has worked up to here; the pause between a kill and its resume does not count."""
    metrics: Mapping[str, Recorded]


class MetricsLog(JsonLines):
    """``metrics.jsonl``: one line per step, steps increasing, plus any trackers, which never hold it up."""

    def __init__(
        self, path: Path, trackers: Sequence[Tracker] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(path)
        self._trackers = tuple(Delivery(tracker) for tracker in trackers)
        self._clock = clock
        self._last_step = -1
        self._rebase()

    @property
    def wall_s(self) -> float:
        """Seconds the run has worked so far: the last line's when the file was opened, and the time since then."""
        return self._base + self._clock() - self._opened

    def log(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Append the step's line; ValueError for a name not in ``METRICS`` or a step not after the last one."""
        if step <= (last := self._last_step):
            raise ValueError(f"{self.path}: step {step} does not follow step {last}; truncate_from({step}) first")
        values: dict[str, Recorded] = {name: _cleaned(name, value) for name, value in metrics.items()}
        lost = sum(v is None for value in values.values() for v in (value if isinstance(value, Sequence) else [value]))
        if lost:
            values["metrics/nonfinite"] = lost
        if dropped := sum(tracker.dropped for tracker in self._trackers):
            values["tracking/dropped"] = dropped
        self.append({"step": step, "time": round(time.time(), 3), "wall_s": round(self.wall_s, 3), "metrics": values})
        self._last_step = step
        for tracker in self._trackers:
            tracker.log(step, flatten(values))

    def truncate_from(self, step: int) -> int:
        """Drop the lines of step ``step`` and later: what a run that continues with that step calls first."""
        dropped = super().truncate_from(step)
        self._rebase()
        return dropped

    def close(self, *, failed: bool = False) -> None:
        """Close the file and every tracker; ``failed``: the run broke off, which trackers show."""
        super().close()
        for tracker in self._trackers:
            tracker.close(failed=failed)

    def _rebase(self) -> None:
        lines = read_metrics(self.path)
        self._last_step = lines[-1].step if lines else -1
        self._base = lines[-1].wall_s if lines else 0.0
        self._opened = self._clock()


class EvaluationsLog(JsonLines):
    """``evaluations.jsonl``: one line per evaluation and data source."""

    def log(self, step: int, rows: Iterable[Mapping[str, object]], *, wall_s: float) -> None:
        """Append rows of ``EvaluationReport.to_json()``; ``wall_s`` is the run's clock (``MetricsLog.wall_s``)."""
        for row in rows:
            self.append({"step": step, "wall_s": round(wall_s, 3), **row})


class EventLog(JsonLines):
    """``events.jsonl``: what happened, when; never truncated, so that it tells the whole history of a run."""

    def log(self, event: str, step: int | None = None, **fields: object) -> None:
        """Append one event; ValueError for a name that is not in ``EVENTS``."""
        if event not in EVENTS:
            raise ValueError(f"unknown event {event!r}; known: {', '.join(EVENTS)}")
        self.append({"time": round(time.time(), 3), "event": event, "step": step, **fields})


def read_metrics(path: Path) -> list[MetricsLine]:
    """The complete lines of a ``metrics.jsonl``, oldest first."""
    try:
        return [MetricsLine(**line) for line in read_lines(path)]
    except TypeError as error:
        raise DataError(f"{path} is not a metrics file: {error}") from error


def _cleaned(name: str, value: MetricValue) -> Recorded:
    kind = metric_for(name).kind
    if isinstance(value, Sequence) != (kind == "list"):
        raise ValueError(f"metric {name} is a {kind}, got {value!r}")
    return [_finite(v) for v in value] if isinstance(value, Sequence) else _finite(value)


def _finite(value: Number) -> Number | None:
    return _plain(value) if math.isfinite(value) else None


def plain(value: MetricValue) -> MetricValue:
    """The value in Python's own numbers, which JSON has; NaN and infinity stay."""
    return [_plain(v) for v in value] if isinstance(value, Sequence) else _plain(value)


def _plain(value: Number) -> Number:
    return int(value) if isinstance(value, numbers.Integral) else float(value)
