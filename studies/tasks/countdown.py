"""The task of studies/countdown-*.toml: some numbers, a target, and a tiny base that has learned to play and forgotten the aim.

    python studies/tasks/countdown.py 3 runs/countdown-3             (needs rlep[tasks])
    python studies/tasks/countdown.py 3 runs/countdown-3 --base      (and a base, as in studies/bases; some minutes)

Questions are reasoning-gym's countdown with 3 numbers up to 20, or 4 up to 9, written briefly: ``16 11 2>54``. A response works
from left to right, ``16+11=27.27*2=54.<answer>(16+11)*2</answer>``, and reasoning-gym's scorer grades the expression.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rlep.core.errors import DataError
from rlep.core.seeds import generator_for, seed_for
from rlep.core.types import Message
from rlep.data.prompt_files import write_verl
from rlep.data.prompt_rows import PromptRow
from rlep.quickstart.base_model import BATCH, PretrainStage, make_base
from rlep.quickstart.toy_tokenizer import SPECIAL
from rlep.services.verifier.gym_tasks import make

SEED = 20260214
VOCABULARY = (*SPECIAL, *"0123456789", "+", "-", "*", "=", ".", "(", ")", " ", ">", "<answer>", "</answer>")
CONTEXT = 64
LARGEST_NUMBER = {3: 20, 4: 9}
"""By how many numbers there are."""
SMALLEST, LARGEST = 10, 99
"""Targets; and no partial result is larger, none is negative."""
STAGES = (PretrainStage("lessons", 1500, 4e-3), PretrainStage("play", 60, 2e-3))
ARRIVES = {"lessons": 1.0, "play": 0.0}
"""Share of the teacher's responses that reach their target by intent. Legal ones that end anywhere come last: under them the
skill is hidden, but not gone."""
TRAIN, HELD_OUT = 512, 200


def settings(count: int) -> dict[str, object]:
    """Of reasoning-gym's task, with ``count`` numbers."""
    return {
        "min_numbers": count,
        "max_numbers": count,
        "min_value": 1,
        "max_value": LARGEST_NUMBER[count],
        "min_target": SMALLEST,
        "max_target": LARGEST,
        "operators": ["+", "-", "*"],
    }


def reserved(numbers: Sequence[int], target: int) -> bool:
    """Whether a question may be in the data sets; the base never sees these, a quarter of all."""
    return seed_for(SEED, "reserved", *sorted(numbers), target) % 4 == 0


def question(numbers: Sequence[int], target: int) -> str:
    """As the policy reads it."""
    return f"{' '.join(map(str, numbers))}>{target}"


def play(numbers: Sequence[int], generator: np.random.Generator) -> tuple[str, int]:
    """A random legal response, in random order with random operators, and what it arrives at."""
    order = [int(number) for number in generator.permutation(np.asarray(numbers))]
    value, expression, steps = order[0], str(order[0]), ""
    for place, number in enumerate(order[1:]):
        results = {"+": value + number, "-": value - number, "*": value * number}
        legal = [sign for sign, result in results.items() if 0 <= result <= LARGEST]
        sign = legal[int(generator.integers(len(legal)))]
        steps += f"{value}{sign}{number}={results[sign]}."
        expression = (f"({expression})" if place else expression) + f"{sign}{number}"
        value = results[sign]
    return f"{steps}<answer>{expression}</answer>", value


def texts(count: int, stage: str, step: int) -> list[tuple[str, str]]:
    """One batch of the teacher's questions with ``count`` numbers, and responses."""
    generator, pairs = generator_for(SEED, stage, step), list[tuple[str, str]]()
    while len(pairs) < BATCH:
        numbers = [int(number) for number in generator.integers(1, LARGEST_NUMBER[count] + 1, count)]
        response, value = play(numbers, generator)
        target = value if generator.random() < ARRIVES[stage] else int(generator.integers(SMALLEST, LARGEST + 1))
        if target >= SMALLEST and not reserved(numbers, target):
            pairs.append((question(numbers, target), response))
    return pairs


def rows(size: int, count: int) -> list[PromptRow]:
    """``size`` questions with ``count`` numbers that no base has seen, each once; reasoning-gym's entry is the reference."""
    found: dict[tuple[int, ...], PromptRow] = {}
    for entry in make("countdown", size=10 * size, seed=SEED % 1000, settings=settings(count)).entries:
        metadata = json.loads(entry)["metadata"]
        numbers, target = metadata["numbers"], metadata["target"]
        if reserved(numbers, target):
            message = Message("user", question(numbers, target))
            found.setdefault((*sorted(numbers), target), PromptRow((message,), entry, "countdown"))
    if len(found) < size:
        raise DataError(f"countdown gave {len(found)} of {size} questions")
    return list(found.values())[:size]


def main(count: int, directory: Path) -> None:
    """Write ``train.parquet`` and ``held-out.parquet``."""
    directory.mkdir(parents=True, exist_ok=True)
    questions = rows(TRAIN + HELD_OUT, count)
    write_verl(directory / "train.parquet", questions[:TRAIN], split="train", ability="countdown")
    write_verl(directory / "held-out.parquet", questions[TRAIN:], split="heldout", ability="countdown")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    if "--base" in sys.argv[3:]:
        make_base(Path(sys.argv[2]) / "model", VOCABULARY, CONTEXT, STAGES, partial(texts, int(sys.argv[1])))
