"""Supervised fine-tuning behind its ports: the draws of phase 2, trained on without rollouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlep.core.errors import MixingError
from rlep.driver.sft import sft_step
from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics
from rlep.metrics.catalogue import metric_for
from tests.unit.driver.driver_fakes import FakePool, World, filled_pool, scene_of
from tests.unit.driver.driver_values import B, M, P, answer_of, config_of, prompts_of

PROMPTS = prompts_of(P)


async def test_trains_on_the_replays_of_phase_2_and_nothing_else() -> None:
    sft, rlep = (scene_of(pool=filled_pool(World(), PROMPTS)) for _ in range(2))
    outcome = await sft_step(sft.step(3), PROMPTS)
    await run_step(rlep.step(3), PROMPTS)
    assert sft.world.happened == ["sample 3", "update 4", "update 4", "publish 4"]
    for own, mixed in zip(sft.learner.batches, rlep.learner.batches, strict=True):
        assert own.replayed.all()
        replays = np.repeat(mixed.replayed, np.diff(mixed.offsets))
        np.testing.assert_array_equal(own.tokens, mixed.tokens[replays])
        assert own.groups.tolist() == [0, 1, 2, 3]
    values = step_metrics(outcome)
    assert (values["replay/trajectories"], values["replay/tokens"]) == (P * M, P * M * 3)
    assert (values["update/count"], values["weights/version"], values["weights/logprob_difference"]) == (
        P // B,
        3,
        0.125,
    )
    assert values["loss/sft"] == np.mean([update.loss for update in outcome.updates])
    assert "loss/policy" not in values
    assert {metric_for(name).name for name in values} >= {"time/step", "time/replay", "time/update", "time/publish"}


async def test_an_update_without_any_replay_is_skipped() -> None:
    stored = {PROMPTS[3].id: [answer_of(PROMPTS[3], n, length=5) for n in range(3)]}
    scene = scene_of(pool=FakePool(World(), stored))
    outcome = await sft_step(scene.step(), PROMPTS)
    assert [len(batch) for batch in scene.learner.batches] == [0, 2]
    assert [update.skipped for update in outcome.updates] == ["no tokens", ""]
    assert (step_metrics(outcome)["update/count"], step_metrics(outcome)["update/skipped"]) == (1, 1)
    assert (step_metrics(outcome)["replay/trajectories"], step_metrics(outcome)["replay/tokens"]) == (2, 10)
    assert scene.weights.versions == [1]


async def test_an_empty_pool_leaves_the_weights_alone() -> None:
    scene = scene_of(pool=FakePool(World()))
    outcome = await sft_step(scene.step(), PROMPTS)
    assert scene.learner.updates == 0
    assert step_metrics(outcome)["update/skipped"] == 2
    assert "loss/sft" not in step_metrics(outcome)


@pytest.mark.parametrize(
    ("changed", "rule", "message"),
    [
        ({"template_digest": "other"}, {}, "template"),
        ({"tokenizer_digest": "other"}, {}, "tokenizer"),
        ({}, {"rollout": {"max_tokens": 2}}, "has 3 tokens, and rollout.max_tokens is 2"),
    ],
    ids=["template", "tokenizer", "too long"],
)
async def test_what_a_group_refuses_is_not_imitated(
    changed: dict[str, str], rule: dict[str, dict[str, object]], message: str
) -> None:
    stored = {
        prompt.id: [
            replace(answer, provenance=replace(answer.provenance, **changed))  # type: ignore[arg-type]
            for answer in (answer_of(prompt, n) for n in range(4))
        ]
        for prompt in PROMPTS
    }
    scene = scene_of(config_of(**rule), pool=FakePool(World(), stored))
    step = scene.step()
    outcome = await sft_step(replace(step, run=replace(step.run, template_digest="ours")), PROMPTS)
    assert (scene.learner.updates, outcome.step.unfit) == (0, len(PROMPTS) * scene.config.replay.count)
    assert message in scene.progress.notes[0]


async def test_a_prompt_with_fewer_answers_than_are_required_is_refused() -> None:
    stored = {prompt.id: [answer_of(prompt, n) for n in range(4)] for prompt in PROMPTS}
    scene = scene_of(config_of(replay={"count": 5, "require": True}), pool=FakePool(World(), stored))
    with pytest.raises(MixingError, match="4 replays where 5 are required"):
        await sft_step(scene.step(), PROMPTS)
    assert scene.learner.updates == 0


async def test_no_pool_is_named() -> None:
    with pytest.raises(MixingError, match="the run has no pool"):
        await sft_step(scene_of().step(), PROMPTS)
