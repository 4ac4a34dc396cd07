"""The GPU benchmark's own code, on a CPU with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_gpu_benchmark_runs_tiny_and_its_modes_agree() -> None:
    command = [sys.executable, "benchmarks/gpu_learner.py", "--tiny", "--json", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["activation_checkpointing"], second["activation_checkpointing"]) == (True, False)
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-6)
    assert first["tokens"] == second["tokens"] > 16 * 5
    assert first["flop_utilization"] is None  # a CPU's peak is not known
    assert first["flops_per_second"] / first["tokens_per_second"] == pytest.approx(
        second["flops_per_second"] / second["tokens_per_second"]
    )
