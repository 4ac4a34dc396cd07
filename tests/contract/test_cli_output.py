"""What reaches standard output and standard error of commands that train: for people, for scripts, or hardly anything."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import rlep.cli.quickstart as workflow
import rlep.launch.collect as collecting
import rlep.launch.train as training
from rlep.actors.run_progress import StepReport
from rlep.cli import app
from rlep.config.schema import Config
from rlep.launch.command import CommandProgress


def two_steps(config: Config, progress: CommandProgress, *, supervised: bool = False) -> SimpleNamespace:
    """Stands for a run of two steps."""
    progress.note(f"{config.run.name}: starting")
    for done in (1, 2):
        progress.step(StepReport(config.run.name, done, 2, 0.5, 2.0 - done, {"rollout/reward": done / 4}))
    return SimpleNamespace(model=config.run.directory / "model")


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (training, workflow):
        monkeypatch.setattr(place, "train", two_steps)
    for place in (collecting, workflow):
        monkeypatch.setattr(place, "collect", two_steps)
        monkeypatch.setattr(place, "collected_text", lambda config, _: f"pool of {config.run.name}")
    summary = SimpleNamespace(rows=lambda: [{"run": "rlep"}], notes=(), headline=str)
    monkeypatch.setattr(workflow, "build_report", lambda *_: SimpleNamespace(html="report.html", summary=summary))


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text('[run]\nname = "mine"\ndirectory = "runs/mine"\n')
    return str(tmp_path / "mine.toml")


def rlep(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("command", ["train", "sft"])
def test_steps_are_lines_on_standard_error_and_the_model_is_the_result(command: str, config: str) -> None:
    done = rlep(command, config)
    assert done.stdout == "model: runs/mine/model\n"
    assert done.stderr.splitlines() == [
        "mine: starting",
        "step 0 (1/2): reward 0.250, 0.50 s/step, 0:01 left",
        "step 1 (2/2): reward 0.500, 0.50 s/step, 0:00 left",
    ]


@pytest.mark.parametrize("command", ["train", "sft"])
def test_quiet_prints_the_model_alone(command: str, config: str) -> None:
    done = rlep(command, config, "--quiet")
    assert (done.stdout, done.stderr) == ("model: runs/mine/model\n", "")


def test_a_quiet_collection_prints_what_the_pool_holds(config: str) -> None:
    done = rlep("collect", config, "--quiet")
    assert (done.stdout, done.stderr) == ("pool of mine\n", "")


@pytest.mark.parametrize("command", ["train", "sft"])
def test_json_prints_steps_alone_on_standard_output(command: str, config: str) -> None:
    done = rlep(command, config, "--json")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(step["run"], step["step"], step["reward"], step["left_s"]) for step in steps] == [
        ("mine", 0, 0.25, 1.0),
        ("mine", 1, 0.5, 0.0),
    ]
    assert done.stderr.splitlines() == ["mine: starting", "model: runs/mine/model"]


def test_the_quickstarts_json_is_the_steps_of_its_runs(tmp_path: Path) -> None:
    done = rlep("quickstart", "--directory", str(tmp_path), "--json")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(step["run"], step["step"]) for step in steps] == [
        (run, step) for run in ("baseline", "collect", "rlep") for step in (0, 1)
    ]
    assert "phase 1: train without replay" in done.stderr
    assert "report: report.html" in done.stderr


def test_the_quickstarts_quiet_result_is_the_comparison(tmp_path: Path) -> None:
    done = rlep("quickstart", "--directory", str(tmp_path), "--quiet")
    assert "phase 1" not in done.stdout
    assert "step " not in done.stdout
    assert "report: report.html" in done.stdout
    assert done.stderr == ""
