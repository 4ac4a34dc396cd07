"""How old tokens are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlep.algorithms.mixing import mix
from rlep.algorithms.rollout_stats import token_staleness
from rlep.core.errors import MixingError, StaleRolloutError
from rlep.core.types import Trajectory
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
