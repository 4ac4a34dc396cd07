"""A run's numbers as gauges: set with each step and again between steps, and never after the end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from rlep.actors.prometheus_gauges import PrometheusTracker, SetGauge
from rlep.actors.run_progress import Phase
from tests.waiting import wait_until


@dataclass
class Recorded:
    """Gauges that remember what they were set to."""

    sets: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)
    made: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def gauge(self, name: str, description: str, labels: tuple[str, ...]) -> SetGauge:
        assert name not in self.made
        assert description
        self.made[name] = labels
        return RecordedGauge(name, labels, self).set


@dataclass
class RecordedGauge:
    name: str
    labels: tuple[str, ...]
    to: Recorded

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.to.sets.append((self.name, tuple(tags[label] for label in self.labels), value))


def test_a_step_sets_each_number_once_under_its_labels() -> None:
    recorded = Recorded()
    tracker = PrometheusTracker("mine", new_gauge=recorded.gauge, every_s=3600)
    before = time.time()
    tracker.log(6, {"rollout/accuracy": 0.25, "ratio/max/fresh": 1.5, "ratio/max/replay": 3.0, "group/replays/0": 4.0})
    tracker.close()
    assert recorded.made["rlep_ratio_max"] == ("run", "source")
    last = {(name, labels): value for name, labels, value in recorded.sets}
    assert len(last) == len(recorded.sets) == 5
    assert before <= last.pop(("rlep_last_progress_timestamp_seconds", ("mine",))) <= time.time()
    assert last == {
        ("rlep_rollout_accuracy", ("mine",)): 0.25,
        ("rlep_ratio_max", ("mine", "fresh")): 1.5,
        ("rlep_ratio_max", ("mine", "replay")): 3.0,
        ("rlep_step", ("mine",)): 7.0,
    }


def test_values_are_set_again_until_the_end_and_of_missing_ones_only_an_evaluation_is_kept() -> None:
    recorded = Recorded()
    tracker = PrometheusTracker("mine", new_gauge=recorded.gauge, every_s=0.01)
    tracker.log(0, {"rollout/accuracy": 0.25, "evaluation/all/avg": 0.5, "metrics/nonfinite": 1.0})
    tracker.log(1, {"rollout/accuracy": 0.75})
    seen = len(recorded.sets)
    wait_until(lambda: len(recorded.sets) >= seen + 8, "the gauges to be set twice more")
    tracker.close()
    again = recorded.sets[seen : seen + 8]
    assert [value for name, _, value in again if name == "rlep_rollout_accuracy"] == [0.75, 0.75]
    assert [value for name, _, value in again if name == "rlep_evaluation_avg"] == [0.5, 0.5]
    assert "rlep_metrics_nonfinite" not in {name for name, _, _ in again}
    assert "prometheus" not in {thread.name for thread in threading.enumerate()}


def test_an_evaluation_that_goes_on_is_progress_and_a_rollout_or_a_halt_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded()
    shown = [Phase("rollout", 1, 8, "responses")]
    now = iter(range(1000, 2000))
    monkeypatch.setattr("rlep.actors.prometheus_gauges.time", SimpleNamespace(time=lambda: float(next(now))))
    tracker = PrometheusTracker("mine", lambda: tuple(shown), recorded.gauge, every_s=0.01)

    def progressed() -> list[float]:
        """Its values after the gauges were set twice more."""
        seen = len(recorded.sets)
        wait_until(lambda: len(recorded.sets) >= seen + 4, "the gauges to be set twice more")
        return [value for name, _, value in recorded.sets if name == "rlep_last_progress_timestamp_seconds"]

    tracker.log(0, {})
    assert set(progressed()) == {1000.0}
    shown[0] = Phase("rollout", 2, 8, "responses")
    assert set(progressed()) == {1000.0}
    shown[:] = [Phase("evaluate", 3, 8, "responses"), Phase("verify", 1, 8, "responses")]
    assert progressed()[-1] == 1001.0
    assert progressed()[-1] == 1001.0
    shown[1] = Phase("verify", 2, 8, "responses")
    assert progressed()[-1] == 1002.0
    shown.clear()
    assert progressed()[-1] == 1002.0
    tracker.close()
