"""``tracking.sinks = ["prometheus"]``: a run's numbers among Ray's own metrics, which Prometheus scrapes from every node."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ray

from rlep.actors.run_progress import Phase
from rlep.core.files import write_whole
from rlep.metrics.series import LAST_PROGRESS, STEP, Series, series_of

SET_AGAIN_S = 5.0
"""Ray forgets a gauge that nobody set for about 30 s, and a step may take minutes."""
TARGETS = "prometheus.json"
"""In a run directory, while the run has a Ray of its own: where Prometheus finds it (``file_sd_configs``)."""
_EVALUATION = "rlep_evaluation_"


SetGauge = Callable[[float, dict[str, str]], None]
"""(value, label → its value): set a gauge."""
NewGauge = Callable[[str, str, tuple[str, ...]], SetGauge]
"""(name, description, label names): make a gauge."""


def ray_gauge(name: str, description: str, labels: tuple[str, ...]) -> SetGauge:
    """Make a gauge of this process; Ray exports it as ``ray_<name>``."""
    from ray.util.metrics import Gauge

    set_gauge: SetGauge = Gauge(name, description=description, tag_keys=labels).set
    return set_gauge


def write_targets(directory: Path) -> None:
    """Name the metrics ports of this Ray's nodes in ``TARGETS``."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]
    write_whole(directory / TARGETS, json.dumps([{"targets": targets}]) + "\n", private=True, shared=True)


def remove_targets(directory: Path) -> None:
    """There is nothing to scrape any more."""
    (directory / TARGETS).unlink(missing_ok=True)


class PrometheusTracker:
    """Keeps every number of the last step set until the next one, and an evaluation's until the next evaluation.

    Nothing here waits for Prometheus: a scrape reads what Ray's agent on this node has collected.
    """

    def __init__(
        self,
        run: str,
        phases: Callable[[], tuple[Phase, ...]] = tuple,
        new_gauge: NewGauge = ray_gauge,
        *,
        every_s: float = SET_AGAIN_S,
    ) -> None:
        """``run``: the label that tells runs apart; ``phases``: the work in progress; ``every_s``: how often values are set."""
        self._run, self._phases, self._new_gauge, self._every_s = run, phases, new_gauge, every_s
        self._evaluated = 0
        """Responses and verdicts of the evaluation in progress."""
        self._gauges: dict[str, SetGauge] = {}
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="prometheus", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take over the numbers of a step; entries of lists have no series."""
        with self._lock:
            self._values = {key: value for key, value in self._values.items() if key[0].startswith(_EVALUATION)}
            for name, value in metrics.items():
                if series := series_of(name):
                    self._put(series, value)
            self._put(Series(STEP, {}, "Training steps done [steps]"), step + 1)
            self._mark_progress()
            self._set()

    def close(self, *, failed: bool = False) -> None:
        """Set nothing any more; the series end half a minute later."""
        self._closed.set()
        self._thread.join()

    def _put(self, series: Series, value: float) -> None:
        if series.name not in self._gauges:
            self._gauges[series.name] = self._new_gauge(series.name, series.help, ("run", *series.labels))
        self._values[series.name, tuple(series.labels.items())] = value

    def _mark_progress(self) -> None:
        series = Series(LAST_PROGRESS, {}, "Last step, or response or verdict of an evaluation [s since the epoch]")
        self._put(series, time.time())

    def _follow_evaluation(self) -> None:
        phases = self._phases()
        evaluates = any(phase.name == "evaluate" for phase in phases)
        evaluated = sum(phase.done for phase in phases) if evaluates else 0
        if evaluates and evaluated != self._evaluated:
            self._mark_progress()
        self._evaluated = evaluated

    def _set(self) -> None:
        for (name, labels), value in self._values.items():
            self._gauges[name](value, {"run": self._run, **dict(labels)})

    def _keep(self) -> None:
        while not self._closed.wait(self._every_s):
            with self._lock:
                self._follow_evaluation()
                self._set()
