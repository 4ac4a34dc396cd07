"""A check in a process of its own: what it answers, and every way in which it does not."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from rlep.selftest.outcome import Check, CheckFailed, CheckSkipped, Outcome, call_all_apart
from tests.waiting import wait_until


def measures() -> str:
    return "7 nats"


def fails() -> str:
    raise CheckFailed("a part is broken")


def skips() -> str:
    raise CheckSkipped("there is one GPU")


def raises() -> str:
    raise ValueError("first line\nsecond")


def dies() -> str:
    os._exit(3)


def hangs(file: Path) -> str:
    """Says who it is, and never answers."""
    file.write_text(str(os.getpid()))
    threading.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("run", "status", "detail", "remedy"),
    [
        (measures, "ok", "7 nats", ""),
        (fails, "failed", "a part is broken", "do this"),
        (skips, "skipped", "there is one GPU", ""),
        (raises, "failed", "ValueError: first line", "do this"),
        (dies, "failed", "the process of dies ended without an answer; its messages are above", "do this"),
    ],
)
def test_every_end_of_a_check_is_an_outcome(run: partial[str], status: str, detail: str, remedy: str) -> None:
    assert Check("part", run, "do this", 120.0).outcome() == Outcome("part", status, detail, remedy)  # type: ignore[arg-type]


def test_a_check_that_hangs_fails_at_its_deadline_and_is_ended(tmp_path: Path) -> None:
    found = Check("part", partial(hangs, tmp_path / "pid"), "do this", 20.0).outcome()
    assert (found.status, found.remedy) == ("failed", "do this")
    assert found.detail.endswith("was not done after 20 s")
    number = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(number), "the end of the process", 60)


def square(number: int) -> int:
    return number * number


def test_calls_at_the_same_time_answer_in_order() -> None:
    assert call_all_apart(square, [(3,), (1,), (2,)], deadline_s=120.0) == [9, 1, 4]
