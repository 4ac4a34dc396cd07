"""Every benchmark loads as the script that its page names: nothing it imports has moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
LOADED = """
import runpy, sys
sys.path.insert(0, sys.argv[1])  # as python does for a script
for name in sys.argv[2:]:
    print(name, callable(runpy.run_path(name, run_name="loaded")["main"]))
"""


@pytest.mark.slow
def test_every_benchmark_loads_as_a_script() -> None:
    names = sorted(map(str, BENCHMARKS.glob("*.py")))
    command = [sys.executable, "-c", LOADED, str(BENCHMARKS), *names]
    result = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=240, check=False)
    assert result.stdout.splitlines() == [f"{name} True" for name in names], result.stderr
