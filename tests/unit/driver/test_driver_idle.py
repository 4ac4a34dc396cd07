"""Runs whose steps bring nothing: they say so, and do not end as if they had trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlep.core.errors import MixingError, UpdateError
from rlep.core.jsonl import read_lines
from rlep.core.types import Status
from rlep.driver.idle import IdleSteps
from rlep.metrics.catalogue import MetricValue
from tests.unit.driver.driver_fakes import Scene, scene_of
from tests.unit.driver.driver_values import B, G, config_of, prompt_set

TRAIN = prompt_set(6)


def hopeless(directory: Path, solved: tuple[int, ...] = (), **sections: dict[str, Any]) -> Scene:
    """Train with dynamic sampling on questions that the policy never solves, but for those of some indices: sometimes."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"steps": 3},
        "rollout": {"dynamic_sampling": True},
        "replay": {"count": 0},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 1},
    }
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | values
    scene = scene_of(config_of(**tree))
    rest: list[Status] = ["wrong"] * (G - 1)
    scene.verifiers.verdicts = {
        prompt.id: ["correct" if index in solved else "wrong", *rest] for index, prompt in enumerate(TRAIN.prompts)
    }
    asyncio.run(scene.train(directory, TRAIN))
    return scene


def test_a_run_whose_groups_were_all_dropped_ends_with_an_error_and_figures_of_all_that_was_sampled(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        UpdateError,
        match=rf"has learned nothing in any of its 3 steps: dynamic sampling found fewer than update\.prompts = {B} groups "
        r"whose verdicts differ.* update\.idle_steps = 0 goes on",
    ):
        hopeless(tmp_path)
    made = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert [(one["rollout/accuracy"], one["rollout/prompts"], one["update/count"]) for one in made] == [(0.0, 6, 0)] * 3
    with pytest.raises(UpdateError, match="any of its 3 steps"):  # as does the command that continues it
        hopeless(tmp_path)


def test_steps_without_a_gradient_end_the_run_after_its_patience_which_a_continued_run_keeps(tmp_path: Path) -> None:
    patient = {"idle_steps": 4}
    with pytest.raises(UpdateError, match="any of its 2 steps"):
        hopeless(tmp_path, run={"steps": 2}, update=patient)
    with pytest.raises(UpdateError, match="has learned nothing in the last 4 steps: dynamic sampling"):
        hopeless(tmp_path, run={"steps": 9}, update=patient)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 3  # the fourth ended the run
    hopeless(tmp_path, run={"steps": 9}, update={"idle_steps": 0})
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 9


def test_one_step_with_a_gradient_makes_it_a_trained_run(tmp_path: Path) -> None:
    scene = hopeless(tmp_path, solved=tuple(range(B)), run={"steps": 2})
    assert scene.learner.updates > 0


def test_every_tenth_step_without_a_gradient_is_said() -> None:
    idle, config = IdleSteps(), config_of(replay={"count": 0}, update={"idle_steps": 25})
    constant: dict[str, MetricValue] = {"update/count": 2, "update/grad_norm_max": 0.0, "rollout/accuracy": 1.0}
    said = []
    for _ in range(24):
        idle = idle.add(config, constant, wanted=False)
        said.append(idle.notes(config, constant))
    assert {number: one for number, one in enumerate(said) if one} == {
        9: [
            "no update has had a gradient in 10 steps: all responses to a question had the same reward; "
            "update.idle_steps = 25 ends the run"
        ],
        19: [
            "no update has had a gradient in 20 steps: all responses to a question had the same reward; "
            "update.idle_steps = 25 ends the run"
        ],
    }
    with pytest.raises(UpdateError, match="learned nothing in the last 25 steps: all responses to a question"):
        idle.add(config, constant, wanted=False)
    idle = idle.add(config, constant | {"update/grad_norm_max": 1e-9}, wanted=False)
    assert (idle.notes(config, constant), idle.updates) == ([], 0)
    idle.check_end(config, 26)


def test_a_live_run_without_a_success_says_every_tenth_step_that_it_has_nothing_to_replay() -> None:
    idle, config = IdleSteps(), config_of(replay={"source": "live", "idle_steps": 12}, update={"idle_steps": 0})
    nothing: dict[str, MetricValue] = {
        "loss/tokens/replay": 0,
        "live/responses": 0,
        "live/questions": 0,
    }
    trained: dict[str, MetricValue] = {"update/grad_norm_max": 1.0}  # the length penalty tells wrong responses apart
    said = []
    for _ in range(10):
        idle = idle.add(config, nothing | trained, wanted=True)
        said.append(idle.notes(config, nothing | trained))
    assert said[:9] == [[]] * 9
    assert said[9] == [
        "no replay has reached the loss in 10 steps, since no response of this run was correct yet; "
        "replay.idle_steps = 12 ends the run"
    ]
    idle = idle.add(config, nothing | trained | {"live/responses": 3, "live/questions": 1}, wanted=True)
    with pytest.raises(MixingError, match="no replay reached the loss in 12 steps"):
        idle.add(config, nothing | trained, wanted=True)


def test_a_teacher_that_says_what_the_policy_says_is_the_reason_where_rewards_have_no_weight() -> None:
    taught = {"teacher": Path("org/strong"), "kl_coef": 1.0, "kl_estimator": "k2", "reward_coef": 0.0}
    config = config_of(loss=taught, replay={"count": 0}, update={"idle_steps": 1})
    with pytest.raises(
        UpdateError, match=r"reward_coef = 0\), and the policy says what loss.teacher = org/strong says"
    ):
        IdleSteps().add(config, {"update/count": 2, "update/grad_norm_max": 0.0}, wanted=False)
