"""Partial credit in one training step behind its ports: rewards, advantages and metrics by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, stdev

import pytest

from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics
from rlep.metrics.catalogue import metric_for
from tests.unit.driver.driver_fakes import FakePool, World, filled_pool, scene_of
from tests.unit.driver.driver_values import P, answer_of, config_of, prompts_of

PROMPTS = prompts_of(P)


async def test_scores_shape_the_rewards_and_their_parts_are_metrics() -> None:
    scene = scene_of(config_of(replay={"count": 0}, advantage={"scale": "none"}))
    scene.verifiers.verdicts = {prompt.id: ["correct", "wrong", "wrong"] for prompt in PROMPTS}
    scene.verifiers.scores = {
        PROMPTS[0].id: [(1.0, {"format": 1.0, "steps": 4.0}), (0.5, {"format": 1.0}), (0.0, {"format": 0.0})],
        **{prompt.id: [(1.0, {}), (0.0, {}), (None, {})] for prompt in PROMPTS[1:]},
    }
    values = step_metrics(await run_step(scene.step(), PROMPTS))
    # Prompt 0: rewards 1, 0, −1, whose mean is 0; the others: 1, −1, −1, whose mean is −1/3.
    assert scene.learner.batches[0].advantages.tolist() == pytest.approx([1, 0, -1, 4 / 3, -2 / 3, -2 / 3])
    assert values["rollout/score"] == pytest.approx((1.5 + 3 * 1) / 12)
    assert values["rollout/reward"] == pytest.approx((0 - 3 * 1) / 12)
    assert values["rollout/accuracy"] == pytest.approx(4 / 12)
    assert values["rollout/part/format"] == pytest.approx(2 / 3)
    assert values["rollout/part/steps"] == 4.0
    assert metric_for("rollout/part/format").name == "rollout/part/<part>"


async def test_pass_at_k_goes_by_the_verdicts_of_the_whole_group() -> None:
    # Three fresh responses, one correct, and a replay: N = 4, N₋ = 2, k = 2: R = 1 − 1/6, σ = √(5/36); correct (1/6)/σ,
    # wrong (1/6 − 1/3)/σ.
    config = config_of(replay={"count": 1}, advantage={"estimator": "pass@k", "k": 2})
    scene = scene_of(config, pool=filled_pool(World(), PROMPTS))
    scene.verifiers.verdicts = {prompt.id: ["wrong", "correct", "wrong"] for prompt in PROMPTS}
    await run_step(scene.step(replays=1), PROMPTS)
    right = 5**-0.5
    expected = [-right, right, -right, right] * len(PROMPTS)
    found = [float(value) for batch in scene.learner.batches for value in batch.advantages]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("estimator", "centre"), [("group", 1 / 3), ("batch", 0.0)])
async def test_a_batch_scale_is_over_the_tokens_of_the_whole_rollout(estimator: str, centre: float) -> None:
    # Two mini-batches of two prompts. Rewards of a prompt 1, 1, −1, whose mean is 1/3, but −1, −1, −1 of the last one.
    scene = scene_of(config_of(replay={"count": 0}, advantage={"scale": "batch", "estimator": estimator}))
    scene.verifiers.verdicts = {prompt.id: ["correct", "correct", "wrong"] for prompt in PROMPTS[:3]}
    scene.verifiers.verdicts[PROMPTS[3].id] = ["wrong"] * 3
    outcome = await run_step(scene.step(), PROMPTS)
    own = [1 - centre, 1 - centre, -1 - centre] * 3 + ([0.0] * 3 if centre else [-1.0] * 3)
    lengths = [int(length) for batch in outcome.batches for length in batch.sampled_lengths]
    tokens = [value for value, length in zip(own, lengths, strict=True) for _ in range(length)]
    expected = [(value - mean(tokens)) / stdev(tokens) for value in own]
    trained = [float(value) for batch in scene.learner.batches for value in batch.advantages]
    assert trained == pytest.approx(expected, abs=1e-6)


async def test_a_replay_has_the_reward_of_its_stored_score() -> None:
    world = World()
    stored = [answer_of(PROMPTS[0], 0), answer_of(PROMPTS[0], 1)]
    stored[1] = replace(stored[1], verdict=replace(stored[1].verdict, score=0.75))
    scene = scene_of(pool=FakePool(world, {PROMPTS[0].id: stored}))
    values = step_metrics(await run_step(scene.step(), PROMPTS))
    assert values["replay/reward"] == (1.0 + 0.5) / 2  # 0.25 · −1 + 0.75 · 1 = 0.5
    assert not {"rollout/score", "rollout/part/format"} & set(values)
