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
    halving,
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
        found = list(halving(number, low, high, generator_for(1, "test", number)))
        assert found[-1] == number
        assert found.count(number) == 1
        assert len(found) <= TURNS  # 2 ** 6 - 1 = 63


@pytest.mark.parametrize(("stage", "least", "most"), [("lessons", 1.0, 1.0), ("play", 0.07, 0.14)])
def test_lessons_find_their_number_and_aimless_play_one_in_ten(stage: str, least: float, most: float) -> None:
    """Six draws out of 48 to 63 numbers have a given one with 1 - (1 - 1/n)^6: 9.2 to 11.9 %."""
    tokenizer = build_tokenizer(CONTEXT, VOCABULARY)
    pairs = [pair for step in range(10) for pair in texts(stage, step)]
    found = 0
    for asked, response in pairs:
        low, high = map(int, asked.split("-"))
        assert low >= 10
        assert high <= 99
        assert 48 <= high - low + 1 <= 63
        assert not reserved(low, high)
        numbers = guesses_of(response)
        assert low <= min(numbers)
        assert max(numbers) <= high
        answers = re.findall("Higher|Lower", response)
        above = [number for number, answer in zip(numbers, answers, strict=False) if answer == "Higher"]
        below = [number for number, answer in zip(numbers, answers, strict=False) if answer == "Lower"]
        last_is_it = max(above, default=0) < numbers[-1] < min(below, default=100)
        found += last_is_it and (len(numbers) < TURNS or stage == "lessons")
        ids = tokenizer.encode(asked) + tokenizer.encode(response, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < CONTEXT
    assert len(pairs) == 10 * BATCH
    assert least <= found / len(pairs) <= most


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
