"""``rlep check --try`` as a user runs it: every part, on this machine's CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small import BASE

MODEL = Path("rlep/quickstart/model").absolute()
NAMES = [
    "attention",
    "gradients",
    "state",
    "longest rows",
    "memory",
    "network",
    "kernel",
    "generator",
    "preemption",
    "weights",
    "lost member",
    "turns",
]


@pytest.mark.timeout(1800)
def test_every_check_passes_on_cpus(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "check", str(BASE), "--try", "--json", "--set", f'model.path="{MODEL}"']
    words += ["--set", "cluster.placement=colocated"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1780, check=False)
    found = json.loads(done.stdout)
    parts = found["findings"][-len(NAMES) :]
    levels = [(name, "skipped" if name == "kernel" else "ok") for name in NAMES]
    assert [(part["what"], part["level"]) for part in parts] == levels, found
    assert all(part["detail"] and not part["remedy"] for part in parts)


def test_what_the_machine_lacks_fails_by_name_and_says_what_to_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "check", str(BASE), "--try", "--set", f'model.path="{tmp_path}"']
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"wrong   parts: the parts are tried with the model's shape from {tmp_path}" in done.stdout
