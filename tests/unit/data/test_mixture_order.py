"""Several training sets with weights: each step's part of each, and epochs of its own."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlep.config.schema import Config
from rlep.config.settings import as_override, differences, dump_config, load_config, parse_config
from rlep.core.errors import ConfigError, DataError
from rlep.data.prompts import PromptOrder, PromptReport, load_prompts, order_of
from tests.unit.data.test_prompt_files import jsonl
from tests.unit.data.test_prompts import one_token_per_word


def config_of(weights: list[float], per_step: int, *overrides: str) -> Config:
    sets = ", ".join(f'{{path = "{number}.jsonl", weight = {weight}}}' for number, weight in enumerate(weights))
    given = [f"data.train=[{sets}]", f"rollout.prompts={per_step}", f"update.prompts={per_step}", "run.seed=3"]
    return load_config([], [*given, *overrides])


def order(weights: list[float], sizes: list[int], per_step: int) -> PromptOrder:
    report = PromptReport(sum(sizes), sum(sizes), 0, 0, 0, 0, (), 1, sizes=tuple(sizes))
    return order_of(config_of(weights, per_step), report)


def counts(mixed: PromptOrder, step: int) -> list[int]:
    chosen = mixed.step(step)
    return [sum(part.first <= index < part.first + part.count for index in chosen) for part in mixed.parts]


def test_weights_three_to_one_share_four_prompts_three_to_one_in_every_step() -> None:
    mixed = order([3, 1], [30, 30], 4)
    assert [counts(mixed, step) for step in range(5)] == [[3, 1]] * 5


def test_six_prompts_are_shared_four_and_five_by_turns() -> None:
    """Three quarters of 6 are 4.5: 4 first, then 9 - 4, then 13 - 9."""
    mixed = order([3, 1], [300, 300], 6)
    assert [counts(mixed, step) for step in range(4)] == [[4, 2], [5, 1], [4, 2], [5, 1]]


def test_decimal_weights_are_exact() -> None:
    """0.1 + 0.2 is not 0.3 in binary: 1 and 2 of 3 prompts all the same, in each of 1000 steps."""
    mixed = order([0.1, 0.2], [10, 10], 3)
    assert {tuple(counts(mixed, step)) for step in range(1000)} == {(1, 2)}


def test_each_set_goes_through_its_own_epochs() -> None:
    """6 questions at 3 a step: 2 steps offer each once. 5 at 1 a step: 5 steps do."""
    mixed = order([3, 1], [6, 5], 4)
    assert [part.epoch for part in mixed.parts] == [2, 5]
    assert mixed.steps_per_epoch == 5
    for begin in (0, 2, 8):
        small = [index for step in (begin, begin + 1) for index in mixed.step(step) if index < 6]
        assert sorted(small) == [0, 1, 2, 3, 4, 5]
    large = [index for step in range(5, 10) for index in mixed.step(step) if index >= 6]
    assert sorted(large) == [6, 7, 8, 9, 10]


def test_a_set_of_small_weight_is_not_left_behind_in_an_update() -> None:
    """The prompts of a step are shuffled: the last one is of the second set in about a quarter of the steps."""
    mixed = order([3, 1], [400, 400], 4)
    last = sum(int(mixed.step(step)[-1]) >= 400 for step in range(400))
    assert 70 <= last <= 130  # binomial(400, 1/4): mean 100, deviation 8.7


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.lists(st.integers(1, 40), min_size=4, max_size=4),
    st.integers(1, 24),
    st.integers(0, 10_000),
)
def test_any_step_has_distinct_prompts_in_the_shares_of_the_weights(
    weights: list[int], sizes: list[int], per_step: int, step: int
) -> None:
    sizes = sizes[: len(weights)]
    try:
        mixed = order(list(map(float, weights)), sizes, per_step)
    except DataError:
        assume(False)
    chosen = mixed.step(step)
    assert len({*chosen}) == len(chosen) == per_step
    for weight, count in zip(weights, counts(mixed, step), strict=True):
        assert abs(count - Fraction(per_step * weight, sum(weights))) < 2
    again = order(list(map(float, weights)), sizes, per_step)
    assert again.step(step).tolist() == chosen.tolist()


def test_one_set_is_in_the_order_that_it_always_was() -> None:
    report = PromptReport(50, 50, 0, 0, 0, 0, (), 1, sizes=(50,))
    single = order_of(config_of([7.0], 8), report)
    assert [single.step(step).tolist() for step in range(13)] == [
        PromptOrder(50, 8, 3).step(step).tolist() for step in range(13)
    ]


def test_prompts_of_a_refill_are_shared_likewise_until_a_set_is_used_up() -> None:
    mixed = order([3, 1], [12, 12], 4)
    first = mixed.refill(0, 1, 8, [])
    assert Counter(bool(index >= 12) for index in first) == {False: 6, True: 2}
    more = mixed.refill(0, 2, 8, first.tolist())
    assert Counter(bool(index >= 12) for index in more) == {False: 6, True: 2}
    rest = mixed.refill(0, 3, 8, [*first, *more])
    assert sorted(rest.tolist()) == sorted({*range(12, 24)} - {*first.tolist(), *more.tolist()})


def test_what_a_weight_cannot_have_is_refused_by_the_name_of_its_set() -> None:
    with pytest.raises(DataError, match=r"the weight of 1\.jsonl gives 0\.8 of 4 prompts a step, at least 1 is needed"):
        order([4, 1], [9, 9], 4)
    with pytest.raises(
        DataError, match=r"the weight of 0\.jsonl asks for 3 prompts a step, and it has 2 questions of its own"
    ):
        order([3, 1], [2, 9], 4)


def test_a_question_of_two_sets_is_the_first_ones(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a.jsonl", {"problem": "1?", "answer": "1"}, {"problem": "2?", "answer": "2"})
    second = jsonl(tmp_path / "b.jsonl", {"problem": "2?", "answer": "2"}, {"problem": "3?", "answer": "3"})
    assert load_prompts([first, second], encode=one_token_per_word, max_tokens=5).report.sizes == (2, 1)


def test_a_list_of_paths_has_equal_weights_and_comes_back_as_it_was_stored() -> None:
    config = load_config([], ['data.train=["a.jsonl", {path = "hf:o/d:train", weight = 2}]'])
    assert [(str(one.path), one.weight) for one in config.data.train] == [("a.jsonl", 1.0), ("hf:o/d:train", 2.0)]
    assert parse_config(json.loads(dump_config(config))) == config
    assert json.loads(dump_config(load_config([], ["data.train=a.jsonl"])))["data"]["train"] == "a.jsonl"
    assert differences(config, load_config([], ["data.train=a.jsonl"]))["data.train"][1] == "a.jsonl"


def test_the_option_that_continues_a_run_can_be_pasted() -> None:
    config = config_of([3, 1], 4)
    stored = json.loads(dump_config(config))["data"]["train"]
    option = as_override("data.train", stored)
    assert (
        option == """--set 'data.train=[{"path" = "0.jsonl", "weight" = 3.0}, {"path" = "1.jsonl", "weight" = 1.0}]'"""
    )
    assert load_config([], [option.removeprefix("--set '").removesuffix("'")]).data.train == config.data.train


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ('[{path = "a", weight = 0}]', "data.train.0.weight = 0: must be more than 0"),
        ('[{path = "a", wieght = 1}]', "data.train.0.wieght = 1: is not a known key"),
        ("[{weight = 1}]", "data.train.0.path is missing"),
        ("[]", "must be a path, as text, or a list of tables with path and weight"),
        ("3", "must be a path, as text, or a list of tables with path and weight"),
        ('["hf:nobody"]', "names no data set of the hub"),
    ],
)
def test_bad_sets_are_refused_in_a_sentence(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([], [f"data.train={value}"])
    assert sentence in str(caught.value)
