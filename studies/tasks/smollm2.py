"""The task of studies/smollm2.toml: reasoning-gym's countdown with three numbers up to 9, asked in a few words of English.

    python studies/tasks/smollm2.py runs/smollm2-countdown        (needs rlep[tasks]; seconds)

It writes what is trained on, what is held out, and a solver's responses to other questions, by which the base is warmed up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from pathlib import Path

from rlep.core.errors import DataError
from rlep.core.types import Message
from rlep.data.prompt_files import write_verl
from rlep.data.prompt_rows import PromptRow
from rlep.services.verifier.gym_tasks import make

SETTINGS = {
    "min_numbers": 3,
    "max_numbers": 3,
    "min_value": 1,
    "max_value": 9,
    "min_target": 10,
    "max_target": 50,
    "operators": ["+", "-", "*"],
}
"""Of reasoning-gym's task."""
SEED = 17
TRAIN, HELD_OUT, WARM_UP = 16, 80, 256


def question(numbers: Sequence[int], target: int) -> str:
    """As the policy reads it."""
    return f"Make {target} of {', '.join(map(str, numbers))}."


def expressions(numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Every expression that takes each number once and works on two of them first, with its value."""
    operate = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    for (a, b, c), first, second in product(permutations(numbers), operate, operate):
        pair = operate[first](a, b)
        yield f"({a}{first}{b}){second}{c}", operate[second](pair, c)
        yield f"{c}{second}({a}{first}{b})", operate[second](c, pair)


def responses(numbers: Sequence[int], target: int) -> tuple[str, ...]:
    """All right ones, each once, sorted."""
    right = {text for text, value in expressions(numbers) if value == target}
    return tuple(f"<answer>{text}</answer>" for text in sorted(right))


def rows() -> list[PromptRow]:
    """Different questions, each with reasoning-gym's entry as the reference and the solver's responses."""
    found: dict[tuple[int, ...], PromptRow] = {}
    for entry in make("countdown", size=1000, seed=SEED, settings=SETTINGS).entries:
        metadata = json.loads(entry)["metadata"]
        numbers, target = metadata["numbers"], metadata["target"]
        message = Message("user", question(numbers, target))
        row = PromptRow((message,), entry, "countdown", responses(numbers, target))
        found.setdefault((*sorted(numbers), target), row)
    if len(found) < TRAIN + HELD_OUT + WARM_UP:
        raise DataError(f"countdown gave {len(found)} questions")
    return list(found.values())


def main(directory: Path) -> None:
    """Write ``train.parquet``, ``held-out.parquet`` and ``solver.parquet``; the same bytes at every call."""
    directory.mkdir(parents=True, exist_ok=True)
    questions = rows()
    parts = {"train": TRAIN, "held-out": HELD_OUT, "solver": WARM_UP}
    for name, size in parts.items():
        part, questions = questions[:size], questions[size:]
        file = directory / f"{name}.parquet"
        write_verl(file, part, split=name, ability="countdown", candidates=name == "solver")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
