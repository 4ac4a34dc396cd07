"""Defects of published RLEP and DAPO code, each shown with its numbers and shown to be absent here."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from rlep.algorithms.advantages import group_advantages
from rlep.algorithms.loss import packed_policy_loss, packed_tokens
from rlep.algorithms.loss_values import normalizers
from rlep.algorithms.mixing import mix
from rlep.algorithms.packing import Budget, pack, sequence_batch, take
from rlep.algorithms.shaping import rewards
from rlep.config.settings import load_config
from rlep.config.training import LossConfig, RewardConfig
from rlep.core.draws import draw_uniform
from rlep.core.errors import MixingError
from rlep.core.types import Group
from rlep.driver.mini_batch import mini_batches
from tests.unit.algorithms.algorithm_values import (
    TOKENIZER,
    batch_of,
    fresh_of,
    group_of,
    prompt_of,
    replays_of,
    trajectory_of,
)
from tests.unit.driver.driver_fakes import scene_of

PROMPT = prompt_of()


def mixed(statuses: str, replays: int) -> Group:
    """16 fresh answers and what the pool has, at most 2."""
    return mix(
        PROMPT,
        fresh_of(PROMPT, statuses),
        replays_of(PROMPT, replays),
        policy_version=7,
        fresh_count=16,
        max_replays=2,
        tokenizer_digest=TOKENIZER,
    )


@pytest.mark.parametrize("stored", [0, 1])
def test_a_short_pool_is_not_padded_with_wrong_answers(stored: int) -> None:
    # Two one-token paddings graded wrong: 16 right + 2 wrong → +0.3436 on every right answer, −2.7487 on an EOS.
    padded = group_advantages([1.0] * 16 + [-1.0] * 2, [0] * 18)
    assert (padded[0], padded[-1]) == (pytest.approx(0.343592, abs=1e-6), pytest.approx(-2.748737, abs=1e-5))
    group = mixed("+" * 16, stored)
    scores = rewards(group.members, RewardConfig(), 3072).scores
    assert len(scores) == 16 + stored
    assert not group_advantages(scores, [0] * len(scores)).any()


def test_a_rollout_is_eight_updates_of_whole_groups_whatever_the_replays() -> None:
    # 512 · 18 sequences in mini-batches of 64 · 16 would be nine updates, with groups across their borders.
    assert 512 * 18 / (64 * 16) == 9
    generator = random.Random(0)
    groups = [group_of(str(number), "+-", replays=generator.randrange(3)) for number in range(512)]
    config = load_config([], ["rollout.prompts=512", "update.prompts=64", "rollout.fresh=2"])
    ready = mini_batches(scene_of(config).run, groups)
    assert [len(part.groups) for part in ready] == [64] * 8
    assert [group for part in ready for group in part.groups] == groups
    for part in ready:
        assert np.bincount(part.batch.groups).tolist() == [len(group.members) for group in part.groups]


def test_the_token_mean_is_of_the_update_and_not_of_each_micro_batch() -> None:
    # Lengths 1 and 9, losses −1 per token: the mean over tokens weighs every token 1/10; a mean of the two
    # micro-batches' means would weigh the short answer's token 1/2 and the others 1/18.
    batch = batch_of([1, 9], advantages=[1.0, 1.0], old=np.zeros(10))
    weights = normalizers(batch, LossConfig())
    gradients = np.zeros(10)
    starts = [0, 1]
    for (micro,) in pack(batch, 2, Budget(tokens=10)):
        (index,) = micro
        part = take(batch, micro)
        logprobs = torch.zeros(int(part.sampled_lengths.sum()), requires_grad=True)
        loss, _ = packed_policy_loss(packed_tokens(part, logprobs, weights[micro]), LossConfig())
        loss.backward()
        assert logprobs.grad is not None
        gradients[starts[index] : starts[index] + len(logprobs)] = logprobs.grad.numpy()
    assert gradients == pytest.approx(np.full(10, -0.1))


def test_replays_are_token_ids_drawn_by_seed_and_refused_when_cut() -> None:
    np.random.seed(0)
    random.seed(0)
    first = draw_uniform([PROMPT.id], [64], 2, seed=3, step=9)[0].tolist()
    np.random.random(100)
    random.random()
    assert draw_uniform([PROMPT.id], [64], 2, seed=3, step=9)[0].tolist() == first
    tokens = [7, 8, 9, 2]
    group = mix(
        PROMPT,
        fresh_of(PROMPT, "-"),
        [trajectory_of(PROMPT, tokens)],
        policy_version=7,
        fresh_count=1,
        max_replays=2,
        tokenizer_digest=TOKENIZER,
    )
    assert sequence_batch([group], [0.0, 0.0]).tokens[-4:].tolist() == tokens
    with pytest.raises(MixingError, match="is truncated"):
        mix(
            PROMPT,
            fresh_of(PROMPT, "-"),
            [trajectory_of(PROMPT, tokens[:-1], finish="length")],
            policy_version=7,
            fresh_count=1,
            max_replays=2,
            tokenizer_digest=TOKENIZER,
        )


def test_equal_rewards_that_round_badly_give_exactly_zero() -> None:
    scores = np.full(18, 0.7)
    # The mean is off by one rounding, and so is the deviation: their quotient is sqrt(17/18).
    plain = (scores - scores.mean()) / scores.std(ddof=1)
    assert plain == pytest.approx(np.full(18, math.sqrt(17 / 18)))
    for eps in (0.0, 1e-6):
        assert group_advantages(scores, [0] * 18, eps=eps).tolist() == [0.0] * 18


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([-1.0, 1.0, 1.0], [0, 1, 1]).tolist() == [0.0, 0.0, 0.0]
