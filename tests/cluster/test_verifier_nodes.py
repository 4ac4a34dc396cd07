"""A reward function or environment that the nodes of a joined cluster lack is found before an actor starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REMEDY = (
    ". Install it on every node that may have a verifier, submit the run with `rlep submit`, or choose nodes by "
    "verifier.label_selector"
)


def test_what_the_nodes_lack_is_one_sentence_before_any_actor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.verifier_nodes", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["same"] == "python:rewards_of_one:grade serves on 2 nodes"
    assert found["labelled"] == "python:rewards_of_one:grade serves on 1 node"
    address = found["address"]
    assert found["missing"] == (
        f"verifier.profile = python:rewards_of_none:grade on node {address}: verifier function 'rewards_of_none:grade': no "
        f"module rewards_of_none here or on the path; set PYTHONPATH or install it{REMEDY}"
    )
    other = f"verifier.profile = python:rewards_of_two:grade on node {address}: the function's file there is not the one here"
    assert found["other"] == other + REMEDY
    assert found["plays"] == "rewards_of_one:Game serves on 1 node"
    remedy = REMEDY.replace("a verifier", "an environment").replace("verifier.label", "environment.label")
    head = "environment.factory = rewards_of_{}:Game on node " + address
    assert found["missing game"] == (
        f"{head.format('none')}: environment.factory 'rewards_of_none:Game': no module rewards_of_none here or on the path; "
        f"set PYTHONPATH or install it{remedy}"
    )
    assert found["other game"] == f"{head.format('two')}: the class's file there is not the one here{remedy}"
    assert f"\nwrong   verifier on the cluster: {other}" in found["check"]
    assert found["check"].startswith("1\n")
    assert found["train"].startswith("2\n")
    assert f"\nerror: {other}{REMEDY}\n" in found["train"]
    assert not (tmp_path / "run").exists()
