"""Groups whose rewards are all equal: what leaves them out, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from rlep.algorithms.loss_values import normalizers
from rlep.config.training import LossConfig
from rlep.driver.run_state import tokens_computed
from rlep.driver.step_metrics import step_metrics
from tests.unit.driver.test_driver_step import PROMPTS, stepped, with_pool


async def test_drop_constant_takes_groups_without_signal_out_of_the_token_count() -> None:
    scene = with_pool(advantage={"drop_constant": True}, replay={"count": 0})
    scene.verifiers.verdicts = {
        PROMPTS[0].id: ["correct"] * 3,
        PROMPTS[1].id: ["correct", "wrong", "wrong"],
        PROMPTS[2].id: ["wrong"] * 3,
        PROMPTS[3].id: ["correct"] * 3,
    }
    outcome = await stepped(scene)
    assert [batch.trained.tolist() for batch in scene.learner.batches] == [[False] * 3 + [True] * 3, [False] * 6]
    values = step_metrics(outcome)
    assert (values["update/count"], values["update/skipped"]) == (1, 1)
    assert values["loss/trajectories/fresh"] == 3
    assert values["group/informative"] == 0.25


@pytest.mark.parametrize(
    ("advantage", "correct", "informative"),
    [  # of each group of six; 3 wrong ones cannot fill a subset of k = 4
        ({"estimator": "pass@k", "k": 4}, [3, 3, 3, 3], 0.0),
        ({"estimator": "pass@k", "k": 2}, [3, 3, 3, 6], 0.75),
        ({"estimator": "batch", "scale": "batch"}, [6, 0, 6, 0], 1.0),
        ({}, [6, 0, 3, 3], 0.5),
    ],
    ids=str,
)
async def test_a_group_is_informative_by_its_advantages(
    advantage: dict[str, object], correct: list[int], informative: float
) -> None:
    advantage |= {"drop_constant": "k" in advantage}
    scene = with_pool(advantage=advantage, rollout={"fresh": 6}, replay={"count": 0})
    scene.verifiers.verdicts = {
        prompt.id: ["correct" if sample < count else "wrong" for sample in range(6)]
        for prompt, count in zip(PROMPTS, correct, strict=True)
    }
    outcome = await stepped(scene)
    assert step_metrics(outcome)["group/informative"] == informative
    if "k" in advantage:
        trained = sum(int(batch.trained.sum()) for batch in scene.learner.batches)
        assert trained == 6 * 4 * informative


async def test_dropped_groups_that_are_counted_leave_the_papers_weights() -> None:
    scene = with_pool(advantage={"drop_constant": True, "count_constant": True}, replay={"count": 0})
    scene.verifiers.verdicts = {prompt.id: ["correct"] * 3 for prompt in PROMPTS}
    scene.verifiers.verdicts[PROMPTS[1].id] = ["correct", "wrong", "wrong"]
    await stepped(scene)
    first, second = scene.learner.batches
    assert [first.computed.tolist(), second.computed.tolist()] == [[False] * 3 + [True] * 3, [False] * 6]
    tokens = int(first.sampled_lengths.sum())  # of both groups of the update
    assert normalizers(first, LossConfig()).tolist() == [0.0] * 3 + [1 / tokens] * 3
    assert not normalizers(second, LossConfig()).any()


@pytest.mark.parametrize("loss", [{}, {"kl_coef": 0.1}, {"entropy_coef": 0.1}], ids=str)
async def test_kl_and_entropy_keep_the_groups_that_drop_constant_takes_out(loss: dict[str, object]) -> None:
    scene = with_pool(advantage={"drop_constant": True}, replay={"count": 0}, loss=loss)
    scene.verifiers.verdicts = {prompt.id: ["correct"] * 3 for prompt in PROMPTS}
    scene.verifiers.verdicts[PROMPTS[1].id] = ["correct", "wrong", "wrong"]
    outcome = await stepped(scene)
    assert [batch.trained.sum() for batch in scene.learner.batches] == [3, 0]
    kept = [None if batch.regularised is None else batch.regularised.tolist() for batch in scene.learner.batches]
    assert kept == ([[True] * 6] * 2 if loss else [None] * 2)
    assert [int(batch.computed.sum()) for batch in scene.learner.batches] == ([6, 6] if loss else [3, 0])
    generated = sum(int(np.diff(batch.offsets)[batch.computed].sum()) for batch in scene.learner.batches)
    assert tokens_computed(outcome)["trained"] == generated
