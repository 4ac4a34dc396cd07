"""What a replayed token's ratio is taken against, and when stored log-probs are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlep.algorithms.loss_values import Scoring, incomparable, old_logprobs
from rlep.algorithms.packing import sequence_batch
from rlep.core.errors import MixingError
from rlep.core.types import Group, Sampling
from tests.unit.algorithms.algorithm_values import TOKENIZER, fresh_of, prompt_of, trajectory_of

PROMPT = prompt_of()
PLAIN = Scoring(TOKENIZER)
RECOMPUTED = np.array([-1, -2, -3, -4, -5], dtype=np.float32)


def old_of(choice: Any, **replay: Any) -> list[float]:
    """Old log-probs of a fresh answer of 2 tokens and a replay of 3 whose stored log-probs are −0.25."""
    stored = trajectory_of(PROMPT, 3, **({"logprob": -0.25} | replay))
    group = Group(PROMPT, 7, tuple(fresh_of(PROMPT, "+", length=2)), (stored,))
    batch = sequence_batch([group], [0.0, 0.0])
    before = RECOMPUTED.copy()
    result = old_logprobs(choice, batch, group.members, RECOMPUTED, PLAIN)
    assert (before == RECOMPUTED).all()
    return result.tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("recompute", [-1, -2, -3, -4, -5]),
        ("behaviour", [-1, -2, -0.25, -0.25, -0.25]),
        ("unit", [-1, -2, 0, 0, 0]),
    ],
)
def test_the_modes_differ_on_replayed_tokens_only(mode: str, expected: list[float]) -> None:
    assert old_of(mode) == expected


@pytest.mark.parametrize(
    ("replay", "reason"),
    [
        ({"logprob": None}, "none were stored"),
        ({"tokenizer": "other"}, "tokenizer 'other'"),
        ({"mode": "shaped"}, "mode 'shaped', not raw or processed"),
        ({"dtype": "bfloat16"}, "computed in bfloat16"),
        ({"sampling": Sampling(temperature=0.7)}, r"sampled at temperature 0\.7, not 1"),
        ({"sampling": Sampling(top_p=0.95)}, r"sampled with top_p 0\.95, not 1"),
        ({"sampling": Sampling(top_k=20)}, "sampled with top_k 20, not off"),
        ({"sampling": Sampling(min_p=0.05)}, r"sampled with min_p 0\.05, not off"),
        ({"sampling": Sampling(repetition_penalty=1.1)}, r"sampled with repetition_penalty 1\.1, not 1"),
    ],
)
def test_stored_log_probs_that_are_not_comparable_are_refused_with_the_reason(
    replay: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MixingError, match=rf"prompt {PROMPT.id}: .* not comparable: {reason}; use .*'recompute'"):
        old_of("behaviour", **replay)
    assert old_of("recompute", **replay) == RECOMPUTED.tolist()


def test_all_reasons_are_named_at_once() -> None:
    stored = trajectory_of(PROMPT, dtype="bfloat16", sampling=Sampling(temperature=0.7, top_p=0.95))
    assert incomparable(stored, PLAIN) == (
        "computed in bfloat16, sampled at temperature 0.7, not 1, sampled with top_p 0.95, not 1"
    )
    assert incomparable(trajectory_of(PROMPT), PLAIN) == ""
    ended = trajectory_of(PROMPT, sampling=Sampling(stop=("</answer>",), stop_tokens=(7,)))  # as likely as ever
    assert incomparable(ended, PLAIN) == ""


@pytest.mark.parametrize(
    ("mode", "sampled", "trained", "reason"),
    [
        ("processed", 0.7, 0.7, ""),
        ("processed", 1.0, 1.0, ""),  # plain sampling leaves them as they are
        ("raw", 1.0, 1.0, ""),
        ("raw", 0.7, 0.7, "mode 'raw', not processed"),
        ("raw", 1.0, 0.7, "mode 'raw', not processed, sampled at temperature 1, not 0.7"),
        ("processed", 0.7, 1.0, "sampled at temperature 0.7, not 1"),
        ("processed", 1.0, 0.7, "sampled at temperature 1, not 0.7"),
    ],
)
def test_log_probs_are_compared_at_one_temperature(mode: str, sampled: float, trained: float, reason: str) -> None:
    stored = trajectory_of(PROMPT, mode=mode, sampling=Sampling(temperature=sampled))
    assert incomparable(stored, Scoring(TOKENIZER, temperature=trained)) == reason


def test_log_probs_after_a_prompt_made_otherwise_are_not_comparable() -> None:
    stored = trajectory_of(PROMPT)
    stored = replace(stored, provenance=replace(stored.provenance, template_digest="old"))
    assert incomparable(stored, Scoring(TOKENIZER, "new")) == "after a prompt by template 'old'"
    assert (incomparable(stored, Scoring(TOKENIZER, "old")), incomparable(stored, PLAIN)) == ("", "")


def test_lengths_that_disagree_are_refused() -> None:
    batch = sequence_batch([Group(PROMPT, 7, tuple(fresh_of(PROMPT, "+", length=2)), ())], [0.0])
    with pytest.raises(ValueError, match="1 members and 5 log-probs for a batch of 1 sequences and 2 sampled tokens"):
        old_logprobs("recompute", batch, fresh_of(PROMPT, "+"), RECOMPUTED, PLAIN)
