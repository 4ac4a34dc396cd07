"""What a training command shows of its steps: a line, a bar, JSON, or nothing."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from rlep.actors.run_progress import Phase, StepReport
from rlep.cli.progress import TerminalProgress, as_clock
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import run_step
from rlep.driver.train import Training
from rlep.launch.watch import Watch
from tests.unit.driver.driver_fakes import World, data_of, filled_pool, scene_of
from tests.unit.driver.driver_values import config_of, prompt_set

SECOND = StepReport(
    "mine", 2, 4, 1.5, 185.2, {"rollout/reward": -0.25, "rollout/accuracy": 0.375, "rollout/length_mean": 41.6}
)
LAST = StepReport("mine", 4, 4, 0.5, 0.0, {"loss/sft": 1.25})


class Terminal(io.StringIO):
    """A terminal's standard error."""

    def isatty(self) -> bool:
        return True


async def trained(directory: Path, progress: TerminalProgress) -> None:
    """Four steps over the driver's fakes, a second each by the watch's clock."""
    train, clock = prompt_set(10), iter(range(100))
    scene = scene_of(config_of(), pool=filled_pool(World(), train.prompts))
    watch = Watch(4, progress.phases, shown=progress.step, clock=lambda: float(next(clock)))
    store = RunDirectory(directory, scene.config, Facts("train", "model", "tok", train.digest))
    try:
        hooks: dict[str, Any] = {"before": [watch.begin_step], "after": [watch.end_step]}
        await Training(scene.run, scene.trainers, data_of(train, ()), store, run_step, **hooks).run()
    finally:
        store.close()


def test_a_line_has_the_step_its_numbers_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress() as progress:
        progress.step(SECOND)
        progress.step(LAST)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 1 (2/4): reward -0.250, accuracy 37.5%, length 42, 1.50 s/step, 3:05 left",
        "step 3 (4/4): loss 1.2500, 0.50 s/step, 0:00 left",
    ]


def test_json_is_an_object_for_each_step_on_standard_output_and_nothing_else_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TerminalProgress(as_json=True) as progress:
        progress.note("pool mine: responses to 3 of 4 training questions")
        progress.say("phase 1")
        progress.step(SECOND)
        progress.step(LAST)
        progress.result("model: runs/mine/model")
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {
            "run": "mine",
            "step": 1,
            "done": 2,
            "steps": 4,
            "reward": -0.25,
            "accuracy": 0.375,
            "length": 41.6,
            "seconds": 1.5,
            "left_s": 185.2,
        },
        {"run": "mine", "step": 3, "done": 4, "steps": 4, "loss": 1.25, "seconds": 0.5, "left_s": 0.0},
    ]
    assert err.splitlines() == [
        "pool mine: responses to 3 of 4 training questions",
        "phase 1",
        "model: runs/mine/model",
    ]


def test_a_terminal_has_a_bar_until_the_last_step_and_then_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with TerminalProgress() as progress:
        progress.step(SECOND)
        with progress.phase("rollout", 8, "answers"):
            assert progress.phases() == (Phase("rollout", 0, 8, "answers"),)  # the run's steps are no phase
    shown = Text.from_ansi(terminal.getvalue()).plain
    assert re.search(r"^step 1: reward -0.250, .*3:05 left\n. steps +━+ +2/4 ", shown, re.M)
    with TerminalProgress() as progress:
        progress.step(SECOND)
        progress.step(LAST)
    assert "step 3 (4/4): loss 1.2500, 0.50 s/step, 0:00 left" in terminal.getvalue()


def test_what_a_command_prints_beside_the_bars_stays_on_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    piped, terminal = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", piped)
    monkeypatch.setattr(sys, "stderr", terminal)
    with TerminalProgress() as progress, progress.phase("rollout", 4, "responses"):
        typer.echo("phase 1: train without replay")
        progress.note("starting 1 generator(s)")
    assert piped.getvalue() == "phase 1: train without replay\n"
    assert "starting 1 generator(s)" in terminal.getvalue()


def test_without_a_terminal_a_phase_has_a_line_where_nothing_was_said_for_15_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("rlep.cli.progress.time.monotonic", lambda: now[0])
    with TerminalProgress() as progress, progress.phase("evaluate", 8, "responses") as advance:
        for second in (110, 114, 115, 129, 131, 132, 146):
            now[0] = second
            advance(1)
        now[0] = 200.0
        advance(1)  # complete: what follows says so
    assert capsys.readouterr().err.splitlines() == [
        "evaluate: 3/8 responses",
        "evaluate: 5/8 responses",
        "evaluate: 7/8 responses",
    ]


async def test_the_numbers_of_a_step_are_those_of_metrics_jsonl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TerminalProgress(as_json=True) as progress:
        await trained(tmp_path, progress)
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [line["step"] for line in logged] == [0, 1, 2, 3]
    assert [step["left_s"] for step in steps] == [3, 2, 1, 0]
    for step, line in zip(steps, logged, strict=True):
        values = line["metrics"]
        assert (step["reward"], step["accuracy"]) == (values["rollout/reward"], values["rollout/accuracy"])
        assert (step["length"], step["seconds"]) == (values["rollout/length_mean"], round(values["time/step"], 3))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599.4, "59:59"), (7500, "2:05:00")],
)
def test_a_duration_reads_as_on_a_clock(seconds: float, text: str) -> None:
    assert as_clock(seconds) == text
