"""A role is scaled where a joined cluster has no room: how long it waits is said, and it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_scaling_without_room_says_how_long_it_waits_and_ends_then(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.no_room", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["waiting"].startswith("needs 1 CPU, 0 GPU; ")
    assert found["waiting"].endswith("; waits 3 s at most (cluster.place_deadline_s)")
    assert found["ended"].startswith(
        "1 of 1 new verifiers did not start: actor verifier-1 was not placed within 3 s: needs 1 CPU"
    )
    assert found["waited"] >= 3
    assert found["left"] == ["verifier-0"]
