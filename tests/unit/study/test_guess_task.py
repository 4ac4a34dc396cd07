"""The task of studies/guess-episodes.toml: what its teacher plays, and that the base sees none of its ranges."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rlep.config.settings import load_config
from rlep.core.seeds import generator_for
from rlep.core.types import Message
from rlep.engines.dialogue import Dialogue
from rlep.engines.tokenizer import load_tokenizer
from rlep.quickstart.base_model import BATCH
from rlep.quickstart.toy_tokenizer import EOS, SEP, build_tokenizer
from studies.tasks.guess import (
    CONTEXT,
    HELD_OUT,
    HIGHER,
    LOWER,
    NONE,
    TEMPLATE,
    TRAIN,
    TURNS,
    VOCABULARY,
    guesses,
    reserved,
    rows,
    texts,
    transcript,
)

ROOT = Path(__file__).parents[3]


def guesses_of(response: str) -> list[int]:
    """The numbers of an episode, after a check of its form."""
    assert re.fullmatch(r"\d\d(<eos>(Higher|Lower)\.<sep>\d\d)*", response), response
    return [int(number) for number in re.findall(r"\d\d", response)]


def test_a_transcript_ends_with_the_number_or_with_the_last_turn() -> None:
    assert transcript(40, [30, 50, 40, 45]) == "30<eos>Higher.<sep>50<eos>Lower.<sep>40"
    assert transcript(40, [41] * 9) == "<eos>Lower.<sep>".join(["41"] * TURNS)


@pytest.mark.parametrize("width", [48, 63])
def test_halving_finds_every_number_of_a_range_in_time(width: int) -> None:
    low, high = 21, 20 + width
    for number in range(low, high + 1):
        found = list(guesses(number, low, high, 1.0, generator_for(1, "test", number)))
        assert found[-1] == number
        assert found.count(number) == 1
        assert len(found) <= TURNS  # 2 ** 6 - 1 = 63


def test_aimless_guesses_are_any_of_ninety_numbers() -> None:
    found = [next(guesses(0, 21, 80, 0.0, generator_for(1, "test", trial))) for trial in range(900)]
    assert {*found} == {*range(10, 100)}  # each is missed with probability (89/90) ** 900 = 0.00004


@pytest.mark.parametrize(("stage", "least", "most"), [("lessons", 0.54, 0.67), ("play", 0.30, 0.42)])
def test_a_stage_halves_the_range_as_often_as_it_says(stage: str, least: float, most: float) -> None:
    """A first guess is a middle with 0.6 + 0.4 × 1.5 / 90 = 0.607, or 0.35 + 0.65 × 1.5 / 90 = 0.361; of 960, four deviations."""
    tokenizer = build_tokenizer(CONTEXT, VOCABULARY)
    pairs = [pair for step in range(10) for pair in texts(stage, step)]
    middles = 0
    for asked, response in pairs:
        low, high = map(int, asked.split("-"))
        assert low >= 10
        assert high <= 99
        assert 48 <= high - low + 1 <= 63
        assert not reserved(low, high)
        named = guesses_of(response)
        assert len(named) <= TURNS
        middles += named[0] in {(low + high) // 2, (low + high + 1) // 2}
        answers = re.findall("Higher|Lower", response)
        above = [number for number, answer in zip(named, answers, strict=False) if answer == "Higher"]
        below = [number for number, answer in zip(named, answers, strict=False) if answer == "Lower"]
        assert max(above, default=low - 1) < min(below, default=high + 1)
        ids = tokenizer.encode(asked) + tokenizer.encode(response, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < CONTEXT
    assert len(pairs) == 10 * BATCH
    assert least <= middles / len(pairs) <= most


def test_each_range_of_the_data_sets_has_eight_numbers_and_is_in_one_of_them() -> None:
    made = rows(TRAIN + HELD_OUT)
    ranges = [tuple(map(int, str(row["question"]).split("-"))) for row in made]
    for row, (low, high) in zip(made, ranges, strict=True):
        assert reserved(low, high)
        assert low <= int(row["number"]) <= high
        assert row["answer"] == str(row["number"])
    assert len({(str(row["question"]), row["number"]) for row in made}) == 712
    assert len({*ranges[:TRAIN]}) == 64
    assert len({*ranges[TRAIN:]}) == 25
    assert not {*ranges[:TRAIN]} & {*ranges[TRAIN:]}


def test_what_follows_a_turn_is_the_answer_and_a_mark() -> None:
    model = load_config([ROOT / "studies" / "tasks" / "guess.toml"]).model
    base = load_tokenizer(ROOT / model.path, model)
    assert base.chat_template == TEMPLATE
    said = base.backend.encode("23-81", add_special_tokens=False)
    assert base.encode_prompt([Message("user", "23-81")]).tolist() == [*said, SEP]
    dialogue = Dialogue(base, observation_tokens=1)
    turn = np.asarray([VOCABULARY.index("5"), VOCABULARY.index("2"), EOS], dtype=np.int32)
    for answer in (HIGHER, LOWER, NONE):
        assert dialogue.suffix(turn, [answer]).tokens.tolist() == [VOCABULARY.index(answer), SEP]
        assert not dialogue.suffix(turn, [answer]).cut
