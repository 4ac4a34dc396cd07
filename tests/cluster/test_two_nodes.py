"""Colocated over two nodes: each has its own copy of the hub's model and its own weights; pools are where the driver is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fake_hub import files_of, running_hub

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "rlep" / "quickstart" / "model"


def test_each_node_has_its_own_model_and_publication_and_pools_stay_with_the_driver(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.two_nodes", str(tmp_path)]
    with running_hub() as hub:
        commit = hub.push("models/org/tiny", files_of(MODEL))
        known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "first"), "HF_HUB_OFFLINE": "0"}
        environment = {**os.environ, **known, "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for home in ("first", "second"):
        (weights,) = (tmp_path / home).rglob("snapshots/*/model.safetensors")
        assert weights.parent.name == commit
        assert weights.read_bytes() == (MODEL / "model.safetensors").read_bytes()
    assert (
        sum("model.safetensors?" in line for line in hub.asked) == 2
    )  # each node once, whatever the number of its actors
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(set(found["bundles"])) == 2
    assert found["pools"] == [found["driver"]] * 6
    assert found["served"] == {"generator-0": 1, "generator-1": 1}
    assert found["versions"] == [1]
    assert all(difference <= 1e-4 for difference in found["differences"])
    for files in found["files"]:
        assert files.keys() == set(found["bundles"])
        assert len(set(files.values())) == 2
