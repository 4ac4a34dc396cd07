"""``rlep quickstart``: the commands of a real project, one after the other, on a problem that two cores can learn."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rlep.check.machine import gpu_memory
from rlep.cli.progress import TerminalProgress
from rlep.cli.tables import show_summary
from rlep.config.schema import Config
from rlep.config.settings import load_config, toml_text
from rlep.core.builds import installed, torch_cuda
from rlep.core.errors import ConfigError
from rlep.launch.collect import collect, collected_text
from rlep.launch.train import train
from rlep.quickstart.task import TaskFiles, build_task
from rlep.view.report import build_report

CONFIGS = resources.files("rlep.quickstart")


def run(directory: Path, progress: TerminalProgress, *, seed: int = 0, steps: int | None = None) -> None:
    """Build the task, train without replay, collect, train with replay, compare; continues what was interrupted."""
    begun = time.monotonic()
    devices = ["gpu"] if gpu_here() else []
    task = build_task(directory / "task")
    progress.say(
        f"task: 512 word problems to train on, 200 held out, base model of 109,888 weights, in {directory / 'task'}"
    )
    common = [
        f"run.seed={seed}",
        *task_overrides(task),
        f"pool.directory={toml_text(str(directory / 'pool'))}",
        *([] if steps is None else [f"run.steps={steps}"]),
    ]
    runs = [directory / name for name in ("baseline", "collect", "rlep")]

    def stage(title: str, command: str, name: str, *overrides: str) -> Config:
        return _stage(progress, title, command, ["base", *devices, name], (*common, *overrides))

    first = stage("phase 1: train without replay", "train", "phase1", _at(runs[0]))
    policy = f"model.path={toml_text(str(train(first, progress).model))}"
    collecting = stage("collect: its verified responses fill the pool", "collect", "collect", policy, _at(runs[1]))
    progress.say(collected_text(collecting, collect(collecting, progress)))
    train(stage("phase 2: from the base again, with replay", "train", "phase2", _at(runs[2])), progress)
    report = build_report(runs, directory / "report")
    progress.say("")
    show_summary(report.summary, stderr=progress.results.stderr)
    progress.result(f"\nreport: {report.html}   ({(time.monotonic() - begun) / 60:.1f} minutes in all)")
    progress.result(f"look into the runs: rlep console {shlex.quote(str(directory))}")


def gpu_here() -> bool:
    """Tell whether torch and vLLM are built for GPUs; generator and learner then share one.

    Raises ``ConfigError`` where there is none.
    """
    if torch_cuda() is None or installed("vllm") is None:
        return False
    if not gpu_memory():
        raise ConfigError(
            "torch and vLLM here are the builds for GPUs, and nvidia-smi shows none: make it work (in a container: "
            "docker run --gpus all), or `make setup LOCK=cpu` installs the builds for CPUs"
        )
    return True


def task_overrides(task: TaskFiles) -> list[str]:
    """Return the overrides with which a run uses the task's model and questions."""
    return [
        f"model.path={toml_text(str(task.model_dir))}",
        f"data.train={toml_text(str(task.train))}",
        f"data.evaluation={toml_text([str(task.heldout)])}",
    ]


def _at(directory: Path) -> str:
    return f"run.directory={toml_text(str(directory))}"


def _stage(
    progress: TerminalProgress, title: str, command: str, layers: Sequence[str], overrides: Sequence[str]
) -> Config:
    """Announce a stage as the command that does the same, and read its config."""
    files = [Path(str(CONFIGS / f"{layer}.toml")) for layer in layers]
    words = ["rlep", command, *map(str, files), *(word for text in overrides for word in ("--set", text))]
    progress.say(f"\n{title}", bold=True)
    progress.say(f"$ {shlex.join(words)}")
    return load_config(files, overrides)
