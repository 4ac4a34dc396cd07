"""How old tokens are, and the importance weights that correct for it."""

from __future__ import annotations

from dataclasses import replace
from math import e

import numpy as np
import pytest
import torch

from rlep.algorithms.loss import truncated_importance
from rlep.algorithms.mixing import mix
from rlep.algorithms.rollout_stats import importance_weights, token_staleness
from rlep.core.errors import MixingError, StaleRolloutError
from rlep.core.types import Int32Array, SequenceBatch, Trajectory
from tests.unit.driver.driver_values import TOKENIZER, answer_of, prompts_of

(PROMPT,) = prompts_of(1)


def written_under(*versions: int, number: int = 0) -> Trajectory:
    """A fresh answer with one token under each version."""
    plain = answer_of(PROMPT, number, length=len(versions))
    return replace(
        plain,
        provenance=replace(plain.provenance, policy_version=min(versions)),
        token_versions=np.array(versions, dtype=np.int32),
    )


def test_ages_count_from_the_version_that_is_trained() -> None:
    whole = replace(answer_of(PROMPT, 9, length=2), token_versions=None)  # of version 0
    assert token_staleness([written_under(5, 5, 6, 7), whole], 7).tolist() == [2, 2, 1, 0, 7, 7]


@pytest.mark.parametrize(("bound", "versions"), [(2, (5, 6, 7)), (1, (6, 6)), (0, (7, 7, 7))])
def test_a_group_takes_tokens_within_the_bound(bound: int, versions: tuple[int, ...]) -> None:
    group = mix_of(written_under(*versions), bound)
    assert group[0].token_versions is not None
    assert group[0].token_versions.tolist() == list(versions)


@pytest.mark.parametrize(
    ("bound", "versions", "named"),
    [(1, (5, 6, 7), 5), (0, (6, 7), 6), (2, (6, 7, 8), 8), (0, (7, 8), 8)],
)
def test_one_token_that_is_too_old_or_of_a_policy_yet_unknown_refuses_the_group(
    bound: int, versions: tuple[int, ...], named: int
) -> None:
    with pytest.raises(StaleRolloutError, match=f"rollout from policy {named}, step trains 7"):
        mix_of(written_under(*versions), bound)


def test_every_token_needs_a_version() -> None:
    short = replace(written_under(7, 7, 7), token_versions=np.array([7, 7], dtype=np.int32))
    with pytest.raises(MixingError, match="has 3 tokens and 2 policy versions"):
        mix_of(short, 1)


def mix_of(one: Trajectory, bound: int) -> tuple[Trajectory, ...]:
    """The fresh members of a group of one, trained at version 7."""
    return mix(
        PROMPT,
        [one],
        [],
        policy_version=7,
        fresh_count=1,
        max_replays=0,
        tokenizer_digest=TOKENIZER,
        max_staleness=bound,
    ).fresh


def batch_of(old: list[float], behaviour: list[float]) -> SequenceBatch:
    """Three sequences of 3, 2 and 1 response tokens: fresh, replayed, and fresh but not trained."""
    lengths = np.array([3, 2, 1])
    return SequenceBatch(
        tokens=zeros(6 + 3),
        offsets=np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int64),
        prompt_lengths=np.ones(3, dtype=np.int32),
        advantages=np.zeros(3, dtype=np.float32),
        trained=np.array([True, True, False]),
        groups=zeros(3),
        replayed=np.array([False, True, False]),
        old_logprobs=np.array(old, dtype=np.float32),
        behaviour_logprobs=np.array(behaviour, dtype=np.float32),
    )


def zeros(count: int) -> Int32Array:
    return np.zeros(count, dtype=np.int32)


def test_weights_are_the_learners_probability_over_the_samplers_up_to_the_cap() -> None:
    # Equal; e times as likely under the learner, cut at 2; a quarter as likely (log 4 = 1.386).
    batch = batch_of([-1.0, -0.5, -2.386294, -9, -9, -9], [-1.0, -1.5, -1.0, np.nan, np.nan, 0])
    assert importance_weights(batch, 2.0) == pytest.approx([1.0, 2.0, 0.25], abs=1e-6)
    assert importance_weights(batch, 5.0) == pytest.approx([1.0, e, 0.25], abs=1e-6)


def test_weights_are_those_of_the_loss() -> None:
    draw = np.random.default_rng(0)
    old, behaviour = -draw.random(6) * 4, -draw.random(6) * 4
    batch = batch_of(old.tolist(), behaviour.tolist())
    fresh = torch.tensor([True, True, True, False, False, False])
    assert batch.old_logprobs is not None
    assert batch.behaviour_logprobs is not None
    taken = truncated_importance(
        torch.from_numpy(batch.old_logprobs).double(), torch.from_numpy(batch.behaviour_logprobs).double(), fresh, 1.5
    )
    np.testing.assert_allclose(importance_weights(batch, 1.5), taken[:3].numpy(), rtol=1e-12)


def test_unknown_log_probs_are_refused() -> None:
    with pytest.raises(ValueError, match="need the old and the behaviour log-probs"):
        importance_weights(replace(batch_of([0] * 6, [0] * 6), old_logprobs=None), 2.0)
