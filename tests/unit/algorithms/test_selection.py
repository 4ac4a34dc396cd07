"""Which stored answers are replayed: reproducible, independent of the batch, and of the stated distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.algorithms.selection import Candidate, reasoning_digest, select
from rlep.core.draws import draw_aged, draw_questions, draw_uniform, draw_uniform_keyed, prompt_keys
from rlep.core.errors import ConfigError
from rlep.core.seeds import seed_for
from rlep.core.types import prompt_id_of
from tests.unit.algorithms.algorithm_values import PROPERTY

IDS = [prompt_id_of(str(number), "1") for number in range(2000)]
WORD = (1 << 64) - 1


def mix(word: int) -> int:
    """The finaliser of splitmix64, in Python's integers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def floyd(prompt_id: str, available: int, count: int, seed: int, step: int) -> list[int]:
    """The documented function of one prompt, slowly."""
    high, low = int(prompt_id[:16], 16), int(prompt_id[16:], 16)
    key = mix(mix(high ^ seed_for(seed, "replay", step)) ^ low)
    picked: list[int] = []
    wanted = min(count, available)
    for i in range(wanted):
        last = available - wanted + i
        word = mix((key + (i + 1) * 0x9E3779B97F4A7C15) & WORD)
        pick = word * (last + 1) >> 64
        picked.append(last if pick in picked else pick)
    return picked


def chi_square(counts: np.ndarray) -> float:
    """Σ (n − e)² / e against equal expectations."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@PROPERTY
@given(
    st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 70)), max_size=20),
    st.integers(0, 9),
    st.integers(0, 2**31),
    st.integers(0, 500),
)
def test_the_draw_is_the_documented_function_of_each_prompt_alone(
    prompts: list[tuple[str, int]], count: int, seed: int, step: int
) -> None:
    ids, available = [p for p, _ in prompts], [n for _, n in prompts]
    indices, offsets = draw_uniform(ids, available, count, seed=seed, step=step)
    rows = [indices[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert rows == [floyd(prompt, n, count, seed, step) for prompt, n in prompts]
    for row, n in zip(rows, available, strict=True):
        assert len(set(row)) == min(count, n)
        assert all(0 <= index < n for index in row)


def test_known_picks_never_change() -> None:
    indices, offsets = draw_uniform(["00" * 16, "ff" * 16, "0123456789abcdef" * 2], [5, 1, 64], 2, seed=1, step=3)
    assert offsets.tolist() == [0, 2, 3, 5]
    assert indices.tolist() == [3, 2, 0, 51, 19]


def test_keys_may_be_kept_between_draws() -> None:
    straight = draw_uniform(IDS[:50], [9] * 50, 2, seed=4, step=1)
    kept = draw_uniform_keyed(prompt_keys(IDS[:50]), [9] * 50, 2, seed=4, step=1)
    assert [a.tolist() for a in straight] == [a.tolist() for a in kept]


def test_ids_that_are_no_hash_are_hashed() -> None:
    keys = prompt_keys(["aime/1", "aime/2", "g" * 32, " " + "0" * 31])
    assert len({tuple(key) for key in keys.tolist()}) == 4


@pytest.mark.parametrize(("available", "count"), [(3, 2), (5, 2), (7, 3), (24, 2)])
def test_every_subset_is_equally_likely(available: int, count: int) -> None:
    draws = Counter[tuple[int, ...]]()
    for step in range(10):
        indices, _ = draw_uniform(IDS, [available] * len(IDS), count, seed=11, step=step)
        draws.update(tuple(sorted(row)) for row in indices.reshape(-1, count).tolist())
    subsets = list(itertools.combinations(range(available), count))
    counts = np.array([draws[subset] for subset in subsets])
    assert counts.sum() == 20_000
    free = len(subsets) - 1
    assert chi_square(counts) < free + 4 * (2 * free) ** 0.5  # four standard deviations above the mean


def inclusions(available: int, count: int, *, steps: int) -> np.ndarray:
    """How often each of a prompt's answers is drawn in 2,000 draws a step."""
    picked = [draw_uniform(IDS, [available] * len(IDS), count, seed=23, step=step)[0] for step in range(steps)]
    return np.bincount(np.concatenate(picked), minlength=available)


def test_of_62_sizes_no_more_fail_a_chi_square_test_at_99_9_percent_than_chance_lets() -> None:
    """The two picks of a draw differ, which makes the statistic smaller by 1 - (2 - 1) / (n - 1)."""
    failed = []
    for n in range(3, 65):
        # 99.9 % quantile of χ² with n - 1 degrees of freedom by Wilson and Hilferty, at most 2.3 % above it.
        spread = 2 / (9 * (n - 1))
        limit = (n - 1) * (1 - spread + 3.0902 * spread**0.5) ** 3
        if chi_square(inclusions(n, 2, steps=5)) / (1 - 1 / (n - 1)) > limit:
            failed.append(n)
    assert len(failed) <= 2, failed  # of 62 tests at 0.1 %, three or more fail once in 30,000 times


@pytest.mark.parametrize(("available", "count"), [(3, 2), (8, 2), (24, 2), (40, 4), (64, 8)])
def test_every_answer_is_drawn_within_5_percent_of_its_share_in_100_000_draws(available: int, count: int) -> None:
    counts = inclusions(available, count, steps=50)
    assert counts.sum() == 100_000 * count
    assert np.abs(counts / (100_000 * count / available) - 1).max() < 0.05


def test_steps_and_seeds_are_independent() -> None:
    first = [draw_uniform(IDS, [4] * len(IDS), 1, seed=s, step=k)[0] for s, k in ((0, 0), (0, 1), (1, 0))]
    for a, b in itertools.combinations(first, 2):
        pairs = np.bincount(4 * a + b, minlength=16)
        assert chi_square(pairs) < 15 + 4 * 30**0.5


@pytest.mark.parametrize(
    ("available", "count", "message"),
    [
        ([1], 2, r"candidate_counts of shape \(1,\) for 2 prompts"),
        ([1, -1], 2, "must be in 0"),
        ([1, 1], -1, "count = -1"),
    ],
)
def test_counts_that_mean_nothing_are_refused(available: list[int], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_uniform(IDS[:2], available, count, seed=0, step=0)


CANDIDATES = (
    Candidate(length=30, created_at=1.0, used=2, logprob=-0.1, digest="a"),
    Candidate(length=10, created_at=3.0, used=0, logprob=-0.9, digest="a"),
    Candidate(length=20, created_at=2.0, used=5, logprob=-0.5, digest="b"),
    Candidate(length=40, created_at=4.0, used=1, logprob=-0.3, digest="a"),
)


def selected(
    strategy: Any, candidates: tuple[Candidate, ...] = CANDIDATES, count: int = 2, **where: Any
) -> tuple[int, ...]:
    """``select`` at a fixed address unless told otherwise."""
    address: dict[str, Any] = {"prompt_id": IDS[0], "seed": 0, "step": 0}
    return select(strategy, candidates, count, **(address | where))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("shortest", (1, 2)),
        ("least-used", (1, 3)),
        ("most-probable", (0, 3)),
        ("least-probable", (1, 2)),
        ("recent", (3, 1)),
    ],
)
def test_ranked_strategies_by_hand(strategy: str, expected: tuple[int, ...]) -> None:
    assert selected(strategy) == expected
    assert len(selected(strategy, count=9)) == 4
    assert selected(strategy, candidates=()) == ()


def test_uniform_selection_is_the_pools_draw() -> None:
    for step in range(20):
        expected, _ = draw_uniform([IDS[3]], [4], 2, seed=8, step=step)
        assert selected("uniform", prompt_id=IDS[3], seed=8, step=step) == tuple(expected)


@pytest.mark.parametrize("strategy", ["shortest", "least-used", "most-probable", "least-probable", "recent"])
def test_ties_are_broken_uniformly(strategy: str) -> None:
    equal = (Candidate(length=5, created_at=0.0, logprob=-1.0, digest="a"),) * 4
    counts = np.zeros(4)
    for step in range(1000):
        for index in selected(strategy, equal, step=step):
            counts[index] += 1
    assert counts.sum() == 2000
    assert chi_square(counts) < 3 + 4 * 6**0.5


def test_diverse_selection_takes_each_solution_before_any_twice() -> None:
    # "b" has one answer, "a" three: every draw of two holds number 2, and each of the others equally often.
    draws = [selected("diverse", step=step) for step in range(900)]
    assert all(2 in draw for draw in draws)
    others = Counter(index for draw in draws for index in draw if index != 2)
    assert chi_square(np.array([others[0], others[1], others[3]])) < 2 + 4 * 2


def test_diverse_selection_draws_solutions_uniformly_however_many_answers_they_have() -> None:
    first = Counter(selected("diverse", count=1, step=step)[0] == 2 for step in range(1000))
    assert chi_square(np.array([first[True], first[False]])) < 1 + 4 * 2**0.5


def test_a_strategy_without_its_input_is_refused() -> None:
    bare = (Candidate(length=1, created_at=0.0),)
    with pytest.raises(ConfigError, match="needs candidates scored under the current policy"):
        selected("most-probable", bare)
    with pytest.raises(ConfigError, match="'diverse' needs the digest of every candidate"):
        selected("diverse", bare)


def test_the_digest_of_the_final_reasoning_ignores_what_came_before() -> None:
    one, two = np.arange(100, dtype=np.int32), np.arange(50, 100, dtype=np.int32)
    assert reasoning_digest(one, tail=50) == reasoning_digest(two, tail=50)
    assert reasoning_digest(one) != reasoning_digest(one[:-1])


def test_a_young_response_is_drawn_by_e_to_the_minus_age_over_tau() -> None:
    ages, decay = [0, 2, 2, 6], 2.0
    first = Counter(draw_aged(one, ages, 2, decay=decay, seed=3, step=5)[0] for one in IDS)
    weights = [math.exp(-age / decay) for age in ages]
    for index, weight in enumerate(weights):
        share = weight / sum(weights)
        assert first[index] / len(IDS) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / len(IDS)))
    assert sorted(draw_aged(IDS[0], ages, 9, decay=decay, seed=3, step=5)) == [0, 1, 2, 3]
    assert draw_aged(IDS[0], [], 2, decay=decay, seed=3, step=5) == ()
    # e^(−10⁶) is 0 in floating point; the draw is still the youngest's
    assert draw_aged(IDS[0], [10**6, 0], 1, decay=1.0, seed=3, step=5) == (1,)


def slow_questions(successes: dict[str, int], count: int, seed: int, step: int) -> list[str]:
    """The documented draw, prompt by prompt, with G = 8, mean 0.5 and deviation 0.125."""
    keyed = []
    for one, s in successes.items():
        high, low = int(one[:16], 16), int(one[16:], 16)
        word = mix(mix(high ^ seed_for(seed, "questions", step)) ^ low)
        u = ((word >> 11) + 0.5) / 2**53
        weight = math.exp(-((s / 8 - 0.5) ** 2) / (2 * 0.125**2)) / sum(other == s for other in successes.values())
        keyed.append((-math.log(u) / weight, one))
    return [one for _, one in sorted(keyed)[:count]]


def test_questions_are_drawn_by_bucket_and_uniformly_within() -> None:
    # 30 prompts with 4 of 8 correct, 3 with 3 of 8, and 7 that weigh next to nothing
    successes = dict(zip(IDS[:40], [4] * 30 + [3] * 3 + [0, 8] * 3 + [8], strict=True))
    draw = partial(draw_questions, of=8, mean=0.5, std=0.125, seed=1)
    first = Counter[int]()
    for step in range(2000):
        drawn = draw(successes, 3, step=step)
        assert len({*drawn}) == 3
        first[successes[drawn[0]]] += 1
        if step < 50:
            backwards = dict(reversed(successes.items()))
            assert drawn == slow_questions(successes, 3, 1, step)
            assert drawn == draw(backwards, 3, step=step)
    share = 1 / (1 + math.exp(-0.5))  # the bucket of 4 against that of 3, one deviation away
    assert first[4] / 2000 == pytest.approx(share, abs=0.045)
    assert first[3] / 2000 == pytest.approx(1 - share, abs=0.045)
    assert draw({}, 3, step=0) == []
    assert sorted(draw(successes, 99, step=0)) == sorted(successes)
