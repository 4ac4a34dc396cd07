"""Episodes in a batch: what an environment wrote is context, and in no ratio, count, mean or penalty."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.corrections import corrected, importance
from rlep.algorithms.loss import NO_REPLAY, packed_policy_loss, packed_tokens
from rlep.algorithms.loss_values import Scoring, normalizers, old_logprobs, regulariser_normalizers
from rlep.algorithms.mixing import mix
from rlep.algorithms.packing import answer_batch, sequence_batch, take
from rlep.algorithms.rollout_stats import rollout_stats, token_staleness
from rlep.algorithms.selection import Candidate
from rlep.algorithms.shaping import rewards
from rlep.config.section import CorrectionConfig
from rlep.config.training import Aggregation, LossConfig, RewardConfig
from rlep.core.errors import MixingError
from rlep.core.types import BoolArray, Group, Prompt, SequenceBatch, Trajectory
from tests.unit.algorithms.algorithm_values import FEW, PROPERTY, TOKENIZER, prompt_of, trajectory_of

PROMPT = prompt_of()  # tokens 900, 901


def episode_of(mask: str, *, prompt: Prompt = PROMPT, first: int = 0, **values: Any) -> Trajectory:
    """Tokens ``first``, ``first`` + 1, …: ``x`` in ``mask`` is sampled with log-prob −0.1, −0.2, …; ``.`` the environment's."""
    sampled = np.array([mark == "x" for mark in mask])
    logprobs = np.where(sampled, -0.1 * np.cumsum(sampled), 0.0).astype(np.float32)
    plain = trajectory_of(prompt, list(range(first, first + len(mask))), sample=f"{first}/{mask}")
    return replace(plain, logprobs=logprobs, sampled=sampled, **values)


def test_per_token_arrays_hold_sampled_tokens_only() -> None:
    # The example of ``SequenceBatch``: of a response of 3 tokens the environment wrote the second.
    plain = replace(trajectory_of(PROMPT, [7]), logprobs=np.array([-0.5], np.float32))
    batch = answer_batch([(PROMPT, episode_of("x.x")), (PROMPT, plain)])
    assert batch.tokens.tolist() == [900, 901, 0, 1, 2, 900, 901, 7]
    assert batch.sampled is not None
    assert batch.sampled.tolist() == [False, False, True, False, True, False, False, True]
    assert batch.sampled_lengths.tolist() == [2, 1]
    assert batch.behaviour_logprobs is not None
    assert batch.behaviour_logprobs.tolist() == np.array([-0.1, -0.2, -0.5], np.float32).tolist()
    assert answer_batch([(PROMPT, plain)]).sampled is None


def test_values_of_sampled_tokens_go_to_their_places_and_come_back() -> None:
    episode = episode_of("xx..x")
    values = np.array([1, 2, 3], np.float32)
    assert episode.sampled_length == 3
    assert episode.over_tokens(values).tolist() == [1, 2, 0, 0, 3]
    assert episode.at_sampled(episode.over_tokens(values)).tolist() == [1, 2, 3]
    assert episode.at_sampled(episode.tokens).tolist() == [0, 1, 4]
    plain = replace(episode, sampled=None)
    assert (plain.sampled_length, plain.over_tokens(values), plain.at_sampled(values)) == (5, values, values)


masks = st.lists(st.booleans(), max_size=9).map(lambda marks: np.array([*marks, True]))


@PROPERTY
@given(st.lists(st.none() | masks, min_size=1, max_size=6), st.data())
def test_taking_sequences_is_laying_out_these_sequences(found: list[BoolArray | None], data: st.DataObject) -> None:
    members = [
        replace(
            episode_of(
                "x" * (4 if mask is None else len(mask)), prompt=prompt_of(length=1 + number), first=10 * number
            ),
            sampled=mask,
        )
        for number, mask in enumerate(found)
    ]
    answers = [(prompt_of(length=1 + number), member) for number, member in enumerate(members)]
    batch = answer_batch(answers)
    chosen = data.draw(st.lists(st.integers(0, len(members) - 1), min_size=1, max_size=8))
    part, wanted = take(batch, chosen), answer_batch([answers[at] for at in chosen])
    assert part.tokens.tolist() == wanted.tokens.tolist()
    assert part.behaviour_logprobs is not None
    assert wanted.behaviour_logprobs is not None
    assert part.behaviour_logprobs.tolist() == wanted.behaviour_logprobs.tolist()
    assert part.sampled_lengths.tolist() == [members[at].sampled_length for at in chosen]
    # Where all of these were sampled whole, ``take`` still says so token by token.
    whole = np.concatenate([[False] * (1 + at) + [True] * len(members[at].tokens) for at in chosen])
    if batch.sampled is not None:
        assert part.sampled is not None
        assert part.sampled.tolist() == (whole if wanted.sampled is None else wanted.sampled).tolist()


AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean",
    "prompt-token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "fixed-length",
)
EVERYTHING = [
    *(LossConfig(aggregation=each, kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01) for each in AGGREGATIONS),
    LossConfig(aggregation="seq-mean-token-mean", level="sequence", clip_low=3e-4, clip_high=4e-4),
    LossConfig(surrogate="cispo", dual_clip=None),
    LossConfig(kl_coef=0.1, kl_estimator="k1"),
    LossConfig(correction=CorrectionConfig(weight="sequence", cap=2.0, mask="geometric", low=0.5, high=1.5)),
]


def update_of(seed: int, *, all_sampled: bool | None = None) -> tuple[SequenceBatch, dict[str, np.ndarray]]:
    """A random update of episodes; ``all_sampled``: the same of whole responses, True with a mask that says so."""
    draw = np.random.default_rng(seed)
    members = []
    for number in range(int(draw.integers(2, 7))):
        mask = draw.random(int(draw.integers(2, 9))) < 0.6
        mask[-1] = True
        one = episode_of("".join("x" if each else "." for each in mask), first=20 * number)
        if all_sampled is not None:
            one = replace(one, sampled=np.ones(len(mask), np.bool_) if all_sampled else None)
        members.append(one)
    groups = [Group(PROMPT, 7, tuple(members[:1]), tuple(members[1:2])), Group(PROMPT, 7, tuple(members[2:]), ())]
    batch = sequence_batch(groups, draw.normal(0, 1, len(members)))
    count = int(batch.sampled_lengths.sum())
    logprobs = -draw.random(count) * 2
    batch = replace(
        batch,
        old_logprobs=(logprobs + draw.normal(0, 0.4, count)).astype(np.float32),
        behaviour_logprobs=(logprobs + draw.normal(0, 0.4, count)).astype(np.float32),
    )
    return batch, {"logprobs": logprobs, "reference": logprobs - 0.3, "entropy": draw.random(count)}


def loss_of(batch: SequenceBatch, values: dict[str, np.ndarray], options: LossConfig) -> tuple[float, list[float]]:
    """Loss and gradient ``[R]`` as a learner computes them."""
    logprobs = torch.tensor(values["logprobs"], requires_grad=True)
    packed = packed_tokens(
        batch,
        logprobs,
        normalizers(batch, options, fixed_length=16),
        reference_logprobs=torch.tensor(values["reference"]) if options.kl_coef else None,
        entropy=torch.tensor(values["entropy"]),
        regulariser_weights=regulariser_normalizers(batch, options, fixed_length=16),
        importance=importance(batch, options, NO_REPLAY),
    )
    loss, _ = packed_policy_loss(packed, options)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.tolist()


@pytest.mark.parametrize("options", EVERYTHING, ids=lambda each: f"{each.aggregation}-{each.surrogate}-{each.level}")
@FEW
@given(seed=st.integers(0, 10**6))
def test_a_mask_that_leaves_nothing_out_changes_no_bit(options: LossConfig, seed: int) -> None:
    (plain, values), (masked, same) = update_of(seed, all_sampled=False), update_of(seed, all_sampled=True)
    assert plain.sampled is None
    assert masked.sampled is not None
    for one in fields(SequenceBatch):
        left, right = getattr(plain, one.name), getattr(masked, one.name)
        assert one.name == "sampled" or np.array_equal(left, right) or left is right is None
    assert loss_of(plain, values, options) == loss_of(masked, same, options)


def looped(batch: SequenceBatch, values: dict[str, np.ndarray], options: LossConfig) -> float:
    """Clipped loss, k3 and entropy of every token in turn; those that an environment wrote are passed over."""
    assert batch.sampled is not None
    assert batch.old_logprobs is not None
    at, terms = 0, []
    for number in range(len(batch)):
        for place in range(batch.offsets[number] + batch.prompt_lengths[number], batch.offsets[number + 1]):
            if not batch.sampled[place]:
                continue
            new, old = float(values["logprobs"][at]), float(batch.old_logprobs[at])
            advantage, ratio = float(batch.advantages[number]), math.exp(new - old)
            term = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.28))
            term = min(term, -advantage * 10) if advantage < 0 else term
            gap = new - float(values["reference"][at])
            term += options.kl_coef * (math.exp(-gap) - 1 + gap) - options.entropy_coef * float(values["entropy"][at])
            terms.append((number, int(batch.groups[number]), term))
            at += 1
    sequences, groups = {number for number, _, _ in terms}, {group for _, group, _ in terms}
    total = 0.0
    for number, group, term in terms:
        own, of_prompt = (sum(each[key] == name for each in terms) for key, name in ((0, number), (1, group)))
        total += (
            term
            / {
                "token-mean": len(terms),
                "prompt-token-mean": len(groups) * of_prompt,
                "seq-mean-token-mean": len(sequences) * own,
                "seq-mean-token-sum": len(sequences),
                "fixed-length": len(sequences) * 16,
            }[options.aggregation]
        )
    return total


@pytest.mark.parametrize("options", EVERYTHING[: len(AGGREGATIONS)], ids=lambda each: str(each.aggregation))
@FEW
@given(seed=st.integers(0, 10**6))
def test_the_loss_of_episodes_is_that_of_a_loop_that_passes_over_observations(options: LossConfig, seed: int) -> None:
    batch, values = update_of(seed)
    assert loss_of(batch, values, options)[0] == pytest.approx(looped(batch, values, options), rel=1e-9)


def test_an_episode_by_hand() -> None:
    # Two sampled tokens of four, ratios e^0.1 and e^0.5 (clipped at 1.28), advantage 1: −(e^0.1 + 1.28) / 2.
    batch = replace(
        sequence_batch([Group(PROMPT, 7, (episode_of("x..x"),), ())], [1.0]), old_logprobs=np.zeros(2, np.float32)
    )
    values = {"logprobs": np.array([0.1, 0.5]), "entropy": np.zeros(2)}
    loss, gradient = loss_of(batch, values, LossConfig())
    assert loss == pytest.approx(-(math.exp(0.1) + 1.28) / 2)
    assert gradient == pytest.approx([-math.exp(0.1) / 2, 0.0])
    # Its sequence-level ratio is the mean over two tokens, not four: e^0.3.
    level = LossConfig(level="sequence", clip_low=0.5, clip_high=0.5)
    assert loss_of(batch, values, level)[0] == pytest.approx(-math.exp(0.3))


def test_corrections_see_sampled_tokens_only() -> None:
    # ρ of two sampled tokens e^0.1 and e^0.2: their product e^0.3, their geometric mean e^0.15.
    batch = sequence_batch([Group(PROMPT, 7, (episode_of("x..x"),), ())], [1.0])
    batch = replace(batch, old_logprobs=np.zeros(2, np.float32))
    whole = corrected(batch, CorrectionConfig(weight="sequence", cap=9.0), replayed=False)
    assert whole.weights.tolist() == pytest.approx([math.exp(0.3)] * 2)
    kept = CorrectionConfig(weight="token", cap=9.0, mask="geometric", low=0.5, high=math.exp(0.151))
    assert not corrected(batch, kept, replayed=False).masked.any()


def test_stored_logprobs_of_an_episode_are_those_of_its_sampled_tokens() -> None:
    episode = episode_of("x..x")
    batch = sequence_batch([Group(PROMPT, 7, (), (episode,))], [1.0])
    recomputed, scoring = np.full(2, -9, np.float32), Scoring(TOKENIZER)
    assert old_logprobs("behaviour", batch, [episode], recomputed, scoring).tolist() == pytest.approx([-0.1, -0.2])
    assert old_logprobs("unit", batch, [episode], recomputed, scoring).tolist() == [0, 0]


def test_penalty_lengths_and_choices_count_sampled_tokens() -> None:
    # Of 8 tokens 5 are sampled: one over the 4 that cost nothing, so −1/2; all 8 would cost −1.
    long, short = episode_of("xx...xxx"), episode_of("x......x", first=50)
    assert rewards([long, short], RewardConfig(overlong_buffer=2), 6).scores.tolist() == [0.5, 1.0]
    stats = rollout_stats([Group(PROMPT, 7, (long,), (short,))], [1, 1], max_replays=1)
    assert (stats.fresh.tokens, stats.fresh.length, stats.replay.tokens) == (5, 5.0, 2)
    assert Candidate.of(long).length == 5
    # Two that reason alike and are told otherwise end alike.
    told = replace(long, tokens=np.where([mark == "x" for mark in "xx...xxx"], long.tokens, 77).astype(np.int32))
    assert Candidate.of(told).digest == Candidate.of(long).digest != Candidate.of(short).digest


def test_policy_lag_is_that_of_sampled_tokens() -> None:
    versions = np.array([5, 0, 0, 6], np.int32)  # an environment has none: 0 says nothing
    episode = episode_of("x..x", token_versions=versions)
    assert token_staleness([episode, episode_of("x.x")], 7).tolist() == [2, 1, 0, 0]
    settings: dict[str, Any] = {"policy_version": 7, "fresh_count": 1, "max_replays": 0, "tokenizer_digest": TOKENIZER}
    assert len(mix(PROMPT, [episode], [], max_staleness=2, **settings).fresh) == 1


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True], "has 3 tokens and says of 1 whether the policy sampled them"),
        ([True, True, False], "ends with a token that its environment wrote"),
        ([False, False, False], "ends with a token that its environment wrote"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: list[bool], message: str) -> None:
    wrong = replace(episode_of("xxx"), sampled=np.array(mask))
    for fresh, replays in (([wrong], []), ([episode_of("x")], [wrong])):
        with pytest.raises(MixingError, match=message):
            mix(PROMPT, fresh, replays, policy_version=7, fresh_count=1, max_replays=1, tokenizer_digest=TOKENIZER)


@pytest.mark.parametrize(
    ("stored", "own", "message"),
    [
        ("game", "", "is from episodes of environment game, this run's are responses without an environment"),
        ("", "game", "is from responses without an environment, this run's are episodes of environment game"),
        ("game", "other", "is from episodes of environment game, this run's are episodes of environment other"),
    ],
)
def test_a_replay_of_another_environment_is_refused(stored: str, own: str, message: str) -> None:
    def of(environment: str, first: int) -> Trajectory:
        source = replace(episode_of("x").provenance, environment_digest=environment)
        return episode_of("x.x", first=first, provenance=source)

    settings: dict[str, Any] = {"policy_version": 7, "fresh_count": 1, "max_replays": 1, "tokenizer_digest": TOKENIZER}
    assert len(mix(PROMPT, [of(own, 0)], [of(own, 9)], environment_digest=own, **settings).members) == 2
    with pytest.raises(MixingError, match=message):
        mix(PROMPT, [of(own, 0)], [of(stored, 9)], environment_digest=own, **settings)
