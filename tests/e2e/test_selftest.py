"""``rlep selftest`` as a user runs it: every check, on this machine's CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small import BASE

MODEL = Path("rlep/quickstart/model").absolute()
NAMES = [
    "environment",
    "attention",
    "gradients",
    "state",
    "longest rows",
    "memory",
    "network",
    "generator",
    "preemption",
    "weights",
    "lost member",
]


@pytest.mark.timeout(1800)
def test_every_check_passes_on_cpus(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "selftest", str(BASE), "--json", "--set", f'model.path="{MODEL}"']
    done = subprocess.run(words, capture_output=True, text=True, timeout=1780, check=False)
    found = json.loads(done.stdout)
    assert [(check["name"], check["status"]) for check in found["checks"]] == [(name, "ok") for name in NAMES], found
    assert (found["ok"], done.returncode) == (True, 0)
    assert all(check["detail"] and not check["remedy"] for check in found["checks"])


def test_what_the_machine_lacks_fails_by_name_and_says_what_to_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "selftest", str(BASE), "--set", f'model.path="{tmp_path}"']
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert f"error: the self-test takes the model's shape from {tmp_path}" in done.stderr
