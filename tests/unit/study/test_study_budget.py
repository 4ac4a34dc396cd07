"""Where the phases of an arm end: at the budget, which earlier phases have a part of."""

from __future__ import annotations

import multiprocessing
from functools import partial
from math import inf
from pathlib import Path

import pytest

from rlep.core.errors import ConfigError, DataError
from rlep.study.study_plan import PhasePlan, phases_of, read_study
from rlep.study.study_results import read_arm, taken_by
from rlep.study.study_runner import Commands
from tests.unit.study.made_up_study import MadeUp, base_of, conducted, study_file
from tests.waiting import wait_until

COUNTING = """
import json, os, signal, time
directory = os.environ["RUN_DIRECTORY"]
os.makedirs(directory, exist_ok=True)
step = 0
try:
    while True:
        step += 1
        counts = {f"compute/{name}_tokens": 100 * step for name in ("generated", "scored", "trained")}
        with open(f"{directory}/metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step - 1, "wall_s": 0.0, "metrics": counts}) + "\\n")
        time.sleep(0.05)
except KeyboardInterrupt:
    open(f"{directory}/stopped", "w").write("SIGINT")
    raise SystemExit(130)
"""


def test_the_last_phase_gets_what_the_others_leave_of_the_budget(tmp_path: Path) -> None:
    run = MadeUp()
    conducted(study_file(tmp_path), run)
    limits = dict(zip(run.ran, run.limits, strict=True))
    assert (
        sorted(limits.values()) == [700.0] * 2 + [2000.0] * 8 + [inf] * 4
    )  # phase 2; the other arms; phase 1, collect
    dear = study_file(tmp_path / "dear")
    dear.write_text(dear.read_text().replace("budget = 2000", "budget = 1300"))
    found = conducted(dear, MadeUp())
    assert found.failed["rlep", 1].reason == "its earlier phases take 1,300 of a budget of 1,300"
    assert ("none", 1) in found.runs


def test_a_run_that_ends_before_its_last_step_and_the_budget_has_no_result(tmp_path: Path) -> None:
    study = read_study(study_file(tmp_path))
    (plan,) = phases_of(study.study, study.arm[0], 1, base_of(study).files, ())
    assert MadeUp()(plan, inf) == ""
    metrics = plan.directory / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:3]))  # 1,500 of compute
    assert taken_by(plan) == 1500
    with pytest.raises(DataError, match="only 3 of its 4 steps are there"):
        read_arm([plan], 1500)
    stopped = read_arm([plan], 1499)
    assert [point.step for point in stopped.within(1499)] == [0, 2]


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhasePlan:
    """A phase whose ``rlep`` is a stand-in that counts its steps until SIGINT."""
    package = tmp_path / "rlep"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(COUNTING)
    study = read_study(study_file(tmp_path))
    (plan,) = phases_of(study.study, study.arm[0], 1, base_of(study).files, ())
    monkeypatch.chdir(tmp_path)  # where the stand-in is found first
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RUN_DIRECTORY", str(plan.directory))
    return plan


def test_a_command_is_stopped_where_its_compute_passes_the_limit(endless: PhasePlan) -> None:
    """It is not even begun where the files pass the limit."""
    assert Commands(hours=1)(endless, 1499) == ""
    assert taken_by(endless) > 1499
    assert (endless.directory / "stopped").read_text() == "SIGINT"
    (endless.directory / "stopped").unlink()
    assert Commands(hours=1)(endless, 1499) == ""
    assert not (endless.directory / "stopped").exists()


def test_the_last_phase_is_told_its_points_of_the_budgets_grid(endless: PhasePlan, tmp_path: Path) -> None:
    (tmp_path / "rlep" / "__main__.py").write_text(
        f"import sys, pathlib; pathlib.Path({str(tmp_path / 'words')!r}).write_text(' '.join(sys.argv))"
    )
    run = Commands(hours=1, grid=(500, 1000, 1500, 2000))
    # earlier phases have taken 1300 of 2000: what is left of the grid is at 1500 and 2000
    assert run(endless, 700) == ""
    assert "--set evaluation.compute=[200, 700]" in (tmp_path / "words").read_text()
    assert run(endless, inf) == ""  # an earlier phase
    assert "evaluation.compute" not in (tmp_path / "words").read_text()


def test_a_killed_study_interrupts_its_command(endless: PhasePlan) -> None:
    """So that the same study goes on from its checkpoint, and meets no run of its own."""
    study = multiprocessing.get_context("fork").Process(target=partial(Commands(hours=1), endless, inf))
    study.start()
    wait_until((endless.directory / "metrics.jsonl").exists, "a step of the command")
    study.kill()
    study.join()
    wait_until((endless.directory / "stopped").exists, "the end of the command")


def test_an_arm_that_is_an_earlier_phase_of_another_is_refused(tmp_path: Path) -> None:
    """It would be stopped at the budget, or evaluated by the other's rule, by who comes first."""
    file = study_file(tmp_path)
    text = file.read_text()
    assert text.count('set = { "replay.count" = 0, "run.steps" = 2 }') == 1
    file.write_text(text.replace('set = { "replay.count" = 0, "run.steps" = 2 }', 'set = { "replay.count" = 0 }'))
    run = MadeUp()
    with pytest.raises(ConfigError, match="a phase of arm rlep is all of arm none, which ends at the budget"):
        conducted(file, run)
    assert run.ran == []
