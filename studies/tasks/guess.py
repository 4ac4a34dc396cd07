"""The task of studies/guess-episodes.toml: a number is guessed in six turns, and a tiny base that seldom heeds the answers.

    python studies/tasks/guess.py runs/guess             (needs rlep)
    python studies/tasks/guess.py runs/guess --base      (and a base, as in studies/bases; a minute or two)

The question is a range of 48 to 63 numbers, ``23-81``; a turn is a number, the answer ``Higher.`` or ``Lower.``, and halving the
range finds every number in time. Eight questions have the same range and each its own number: a question does not tell its
number, so what helps on others is the search, and a replayed episode shows one way through it. Held-out ranges are others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlep.core.files import replace_with
from rlep.core.seeds import generator_for, seed_for
from rlep.quickstart.base_model import BATCH, PretrainStage, make_base
from rlep.quickstart.toy_tokenizer import SPECIAL

SEED = 20260214
HIGHER, LOWER, NONE = "Higher.", "Lower.", "Name a number."
VOCABULARY = (*SPECIAL, *"0123456789", "-", HIGHER, LOWER, NONE)
CONTEXT = 64
SMALLEST, LARGEST = 10, 99
NARROWEST, WIDEST = 48, 63
TURNS = 6
STAGES = (PretrainStage("lessons", 1500, 4e-3), PretrainStage("play", 60, 2e-3))
AIM = {"lessons": 0.6, "play": 0.35}
"""Share of the teacher's guesses that halve what is left; others are any number of two digits. Under them the skill is hidden,
but not gone."""
TRAIN, HELD_OUT = 512, 200
NUMBERS = 8
"""Questions of a range, each with its number from another eighth of it."""
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<sep>{{ message['content'] }}<eos>"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)
"""Of one question what the quickstart's gives; a turn stands between ``<sep>`` and ``<eos>``, and the answer to it follows."""

Range = tuple[int, int]
"""Lowest and highest number, both in it."""


def reserved(low: int, high: int) -> bool:
    """Whether a range may be in the data sets; the base never sees these, a quarter of all."""
    return seed_for(SEED, "reserved", low, high) % 4 == 0


def drawn_range(generator: np.random.Generator, *, kept: bool) -> Range:
    """A range of the data sets, or (not ``kept``) of the base's lessons."""
    while True:
        width = int(generator.integers(NARROWEST, WIDEST + 1))
        low = int(generator.integers(SMALLEST, LARGEST - width + 2))
        if reserved(low, low + width - 1) == kept:
            return low, low + width - 1


def question(low: int, high: int) -> str:
    """As the policy reads it."""
    return f"{low}-{high}"


def guesses(number: int, low: int, high: int, aim: float, generator: np.random.Generator) -> Iterator[int]:
    """Guesses to the number: a share ``aim`` in the middle of what is left, of two middles either, the others anywhere."""
    guess = low - 1
    while guess != number:
        middle = (low + high + int(generator.integers(2))) // 2
        guess = middle if generator.random() < aim else int(generator.integers(SMALLEST, LARGEST + 1))
        yield guess
        low, high = (max(low, guess + 1), high) if guess < number else (low, min(high, guess - 1))


def transcript(number: int, named: Iterable[int]) -> str:
    """An episode as text: turns and answers, to the number or the last turn."""
    turns: list[str] = []
    for guess, _ in zip(named, range(TURNS), strict=False):
        turns.append(str(guess))
        if guess == number:
            break
        turns.append(f"<eos>{HIGHER if guess < number else LOWER}<sep>")
    return "".join(turns if len(turns) % 2 else turns[:-1])


def texts(stage: str, step: int) -> list[tuple[str, str]]:
    """One batch of the teacher's questions and episodes."""
    generator, pairs = generator_for(SEED, stage, step), list[tuple[str, str]]()
    for _ in range(BATCH):
        low, high = drawn_range(generator, kept=False)
        number = int(generator.integers(low, high + 1))
        pairs.append((question(low, high), transcript(number, guesses(number, low, high, AIM[stage], generator))))
    return pairs


def rows(size: int) -> list[dict[str, str | int]]:
    """``size`` questions of ranges that no base has seen; ``number`` is the one to be found."""
    generator, found = generator_for(SEED, "questions"), dict[Range, None]()
    while len(found) * NUMBERS < size:
        found[drawn_range(generator, kept=True)] = None
    made: list[dict[str, str | int]] = []
    for low, high in found:
        for first, beyond in pairwise(np.linspace(low, high + 1, NUMBERS + 1).astype(int)):
            number = int(generator.integers(first, beyond))
            made.append({"question": question(low, high), "answer": str(number), "number": number})
    return made[:size]


def write(path: Path, questions: Iterable[dict[str, str | int]]) -> None:
    """Write rows as JSON lines."""
    with replace_with(path) as part:
        part.write_text("".join(f"{json.dumps(row)}\n" for row in questions), encoding="utf-8")


def main(directory: Path) -> None:
    """Write ``train.jsonl`` and ``held-out.jsonl``."""
    directory.mkdir(parents=True, exist_ok=True)
    questions = rows(TRAIN + HELD_OUT)
    write(directory / "train.jsonl", questions[:TRAIN])
    write(directory / "held-out.jsonl", questions[TRAIN:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if "--base" in sys.argv[2:]:
        make_base(Path(sys.argv[1]) / "model", VOCABULARY, CONTEXT, STAGES, texts)
        (Path(sys.argv[1]) / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
