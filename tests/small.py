"""A run small enough for a test: a slice of the quickstart's problem, few steps, everything real."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from safetensors import safe_open

from rlep.quickstart.task import build_task

BASE = Path(__file__).parents[1] / "rlep" / "quickstart" / "base.toml"
PROMPTS, FRESH, PER_UPDATE = 4, 4, 2


def small_task(directory: Path, *, train: int = 16, heldout: int = 6) -> list[str]:
    """Write the base model and ``train`` + ``heldout`` problems; the overrides that make a run use them."""
    task = build_task(directory / "task")
    for file, count in ((task.train, train), (task.heldout, heldout)):
        pq.write_table(pq.read_table(file).slice(0, count), directory / file.name)
    return [
        f'model.path="{task.model_dir}"',
        f'data.train="{directory / task.train.name}"',
        f'data.evaluation=["{directory / task.heldout.name}"]',
        f'pool.directory="{directory / "pool"}"',
        f"rollout.prompts={PROMPTS}",
        f"rollout.fresh={FRESH}",
        f"update.prompts={PER_UPDATE}",
        "run.steps=3",
        "evaluation.every=0",
        "evaluation.samples=2",
        "evaluation.final_samples=2",
        "checkpoint.every=1",
        "collection.samples=64",
        "generator.max_sequences=64",
        "generator.cpus=0.5",
        "learner.cpus=0.5",
    ]


def rlep(*arguments: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would; with ``check`` its failure is the test's, with what it printed."""
    command = [sys.executable, "-m", "rlep", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    if check and done.returncode:
        raise AssertionError(f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def options(overrides: list[str]) -> list[str]:
    """``--set`` for each override."""
    return [part for text in overrides for part in ("--set", text)]


def contents(home: Path) -> dict[str, bytes]:
    """Every tensor of a checkpoint: weights, moments, random states. Files may hold them in any order."""
    found: dict[str, bytes] = {}
    for path in sorted(home.rglob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            found |= {f"{path.name}:{name}": file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def workers_of(owner: psutil.Process) -> list[psutil.Process]:
    """Of an engine's owner: the engine's tensor-parallel workers, not told by their titles, which are not set on every start."""
    found = []
    for part in (child for engine in owner.children() for child in engine.children()):
        with suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in " ".join(part.cmdline()):
                found.append(part)
    return found
