"""Nodes of Ray's test cluster end under a run: what was answered, where the actors went, and what the learner says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lost_nodes import SAMPLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What ``lost_nodes`` wrote."""
    home = tmp_path_factory.mktemp("lost-nodes")
    command = [sys.executable, "-m", "tests.cluster.lost_nodes", str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((home / "found.json").read_text())


def exactly_g(rollout: dict[str, Any]) -> None:
    """No sample twice, and G of every question, all of the version that was served before."""
    assert Counter(rollout["arrived"]) == Counter(rollout["wanted"])
    of_prompt = Counter(request.split("/")[1] for request in rollout["arrived"])
    assert set(of_prompt.values()) == {SAMPLES}
    assert rollout["versions"] == [0]
    assert rollout["retried"] > 0


def test_the_generators_node_is_lost_in_a_rollout_and_comes_back_under_another_address(found: Any) -> None:
    rollout = found["lost"]
    exactly_g(rollout)
    (before, old), (after, new) = rollout["before"], rollout["after"]
    assert before != after
    assert (old, new) == ("127.0.0.1", "127.0.0.2")
    lost = [event for event, actor in found["events"] if actor == "generator-0"]
    assert lost == ["actor_started", "actor_lost", "actor_restarted", "actor_lost", "actor_restarted"]


def test_a_rollout_whose_node_is_drained_answers_every_request_once(found: Any) -> None:
    rollout = found["drained"]
    exactly_g(rollout)
    assert rollout["before"] == found["lost"]["after"]


def test_a_learner_that_no_node_has_room_for_says_what_it_needs(found: Any) -> None:
    lost, unplaced = found["learner"]["said"]
    assert "learner-1" in lost.splitlines()[0]
    assert unplaced.startswith("actor learner-")
    assert "was not placed within 5 s: needs 2 CPU, 0 GPU rlep-role=learner" in unplaced


def test_a_learner_whose_node_is_lost_goes_on_from_its_checkpoint_on_another(found: Any) -> None:
    learner = found["learner"]
    assert learner["lost"] not in learner["nodes"]
    assert len(set(learner["nodes"])) == 2
    assert learner["restarts"] == 2  # one found no room
    assert learner["equal"]
    assert 0 <= learner["difference"] <= 1e-4
