"""Trackers that raise, hang or close badly: the run's own file has every step, and what they lost is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlep.metrics import delivery
from rlep.metrics.delivery import Delivery
from rlep.metrics.logs import MetricsLog, read_metrics
from tests.waiting import Gate, gate, wait_until


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Failing:
    """Refuses even steps, and does not close."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take odd steps."""
        if step % 2 == 0:
            raise OSError("no route to host")
        self.steps.append(step)

    def close(self, *, failed: bool = False) -> None:
        """Refuse that too."""
        raise OSError("no route to host")


class Hanging:
    """Takes nothing while its gate is closed."""

    def __init__(self, way: Gate) -> None:
        self.way = way
        self.steps: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Wait at the gate."""
        self.way.pass_through()
        self.steps.append(step)

    def close(self, *, failed: bool = False) -> None:
        """Nothing to do."""


def dropped(path: Path) -> list[object]:
    return [line.metrics.get("tracking/dropped") for line in read_metrics(path)]


def test_a_tracker_that_raises_costs_its_own_steps_and_they_are_counted(
    tmp_path: Path, keep: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Failing()
    log = keep.enter_context(MetricsLog(tmp_path / "metrics.jsonl", [tracker]))
    (given,) = log._trackers
    for step in range(6):
        log.log(step, {"time/step": 1.0})
        wait_until(lambda step=step: given.dropped + len(tracker.steps) == step + 1, "the tracker to see the step")  # type: ignore[misc]
    log.close()
    assert dropped(log.path) == [None, 1, 1, 2, 2, 3]
    assert tracker.steps == [1, 3, 5]
    assert [record.message for record in caplog.records] == [
        "Failing refused step 0: OSError: no route to host",
        "Failing could not be closed: OSError: no route to host",
    ]


def test_a_tracker_that_hangs_holds_up_neither_a_step_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "STEPS", 2)
    monkeypatch.setattr(delivery, "CLOSE_S", 0.05)
    way = keep.enter_context(gate())
    tracker = Hanging(way)
    log = keep.enter_context(MetricsLog(tmp_path / "metrics.jsonl", [tracker]))
    log.log(0, {"time/step": 1.0})
    way.wait_for_somebody()  # it holds step 0; steps 1 and 2 wait
    for step in range(1, 6):
        log.log(step, {"time/step": 1.0})
    log.close()
    assert dropped(log.path) == [None, None, None, None, 1, 2]
    assert [record.message for record in caplog.records] == [
        "Hanging has 2 steps to take: step 3 is the first it does not get",
        "Hanging had not taken the last steps after 0.05 s; metrics.jsonl has them",
    ]
    assert tracker.steps == []
    way.open()
    wait_until(lambda: tracker.steps == [0, 1, 2], "the tracker to take what waited")


def test_steps_come_in_order_and_before_the_end() -> None:
    with gate() as way:
        tracker = Hanging(way)
        given = Delivery(tracker)
        for step in range(100):
            given.log(step, {})
        way.open()
        given.close()
    assert (tracker.steps, given.dropped) == (list(range(100)), 0)
