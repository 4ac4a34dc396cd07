"""Colocated over two nodes: every node's generator takes the weights written there; pools are where the driver is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_node_has_its_own_publication_and_pools_stay_with_the_driver(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.two_nodes", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(set(found["bundles"])) == 2
    assert found["pools"] == [found["driver"]] * 6
    assert found["served"] == {"generator-0": 1, "generator-1": 1}
    assert found["versions"] == [1]
    assert all(difference <= 1e-4 for difference in found["differences"])
    for files in found["files"]:
        assert files.keys() == set(found["bundles"])
        assert len(set(files.values())) == 2
