"""A check in a process of its own: what it answers, and every way in which it does not."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from rlep.check.finding import CheckSkipped, Finding, Level
from rlep.check.parts.outcome import Check, CheckFailed, call_all_apart
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
    file.with_suffix(".part").write_text(str(os.getpid()))
    file.with_suffix(".part").rename(file)
    threading.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("run", "status", "detail", "remedy"),
    [
        (measures, "ok", "7 nats", ""),
        (fails, "wrong", "a part is broken", "do this"),
        (skips, "skipped", "there is one GPU", ""),
        (raises, "wrong", "ValueError: first line", "do this"),
        (dies, "wrong", "the process of dies ended without an answer", "do this"),
    ],
)
def test_every_end_of_a_check_is_a_finding(run: partial[str], status: Level, detail: str, remedy: str) -> None:
    assert Check("part", run, "do this", 120.0).finding() == Finding("part", status, detail, remedy)


def talks(fate: str) -> str:
    sys.stdout.write("a message\n")
    sys.stdout.flush()
    os.system("echo of a library >&2")
    if fate == "fails":
        raise CheckFailed("a part is broken")
    return "done"


def test_what_a_check_prints_is_shown_where_it_fails_and_nowhere_else(capfd: pytest.CaptureFixture[str]) -> None:
    done = Check("part", partial(talks, "ends"), "", 120.0).finding()
    assert (done.detail, done.messages) == ("done", "")
    failed = Check("part", partial(talks, "fails"), "", 120.0).finding()
    assert failed.messages == "a message\nof a library"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_check_that_hangs_fails_at_its_deadline_and_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    for deadline_s in (5.0, 20.0, 80.0):  # a process may take long to start on a busy machine
        found = Check("part", partial(hangs, file), "do this", deadline_s).finding()
        assert (found.level, found.remedy) == ("wrong", "do this")
        assert found.detail.endswith(f"was not done after {deadline_s:.0f} s")
        if file.exists():
            break
    number = int(file.read_text())
    wait_until(lambda: not psutil.pid_exists(number), "the end of the process", 60)


def square(number: int) -> int:
    return number * number


def test_calls_at_the_same_time_answer_in_order() -> None:
    assert call_all_apart(square, [(3,), (1,), (2,)], deadline_s=120.0) == [9, 1, 4]
