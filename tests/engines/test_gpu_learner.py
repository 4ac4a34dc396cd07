"""The GPU benchmark's own code, on a CPU with a tiny model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_gpu_benchmark_runs_tiny_and_its_modes_agree() -> None:
    command = [sys.executable, "benchmarks/gpu_learner.py", "--shape", "tiny", "--json", "--repeats", "1"]
    command += ["--modes", "checkpointing,plain,fa3,head"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second, absent, head = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["mode"], second["mode"]) == ("checkpointing", "plain")
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-6)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-6)
    assert first["tokens"] == second["tokens"] > 16 * 5
    assert first["flop_utilization"] is None  # a CPU's peak is not known
    assert first["flops_per_second"] / first["tokens_per_second"] == pytest.approx(
        second["flops_per_second"] / second["tokens_per_second"]
    )
    assert absent["not_measured"].startswith("FlashAttention 3 is not installed: ")
    assert (head["rows"], head["width"], head["vocabulary"]) == (512, 32, 97)
    for way in ("as_it_is", "products_apart", "chunks_of_1_gib"):
        assert head[way]["gradient_difference"] < 1e-6


def test_a_mode_that_does_not_fit_into_the_gpu_is_a_figure_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gpu_learner", ROOT / "benchmarks/gpu_learner.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_learner", script)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec.loader.exec_module(script)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(script, "LearnerRank", full)
    figures = script.measure("plain", script.SIZES["tiny"], tmp_path, 1)
    assert figures == {"mode": "plain", "device": "cpu", "torch": torch.__version__, "out_of_memory": "no room"}
