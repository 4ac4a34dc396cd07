"""Small word problems with step-by-step solutions: ``m`` bags of ``n`` things, then up to three gains and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rlep.core.seeds import generator_for, seed_for

NAMES = ("Ann", "Ben", "Cal", "Dee", "Eve", "Fay")
NOUNS = ("pens", "cups", "keys", "nuts", "hats", "figs")
LARGEST = 99
"""Every partial result lies in 0…99, so that no number has more than two digits."""

STEP_COUNTS = (1, 2, 3)
"""Numbers of gains and losses that a problem may have."""

Option = TypeVar("Option")
Key = tuple[int, int, tuple[int, ...]]
"""Identity of a problem: ``(m, n, steps)``; the name and the noun are no part of it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``m`` bags of ``n`` things and signed single-digit steps, e.g. ``Problem(8, 7, (6, -4), "Ann", "pens")``."""

    m: int
    n: int
    steps: tuple[int, ...]
    name: str
    noun: str

    @property
    def key(self) -> Key:
        """The arithmetic alone."""
        return self.m, self.n, self.steps

    @property
    def values(self) -> tuple[int, ...]:
        """The partial results: ``(56, 62, 58)`` for ``8*7``, ``+6``, ``-4``."""
        totals = [self.m * self.n]
        for step in self.steps:
            totals.append(totals[-1] + step)
        return tuple(totals)

    @property
    def answer(self) -> int:
        """The last partial result."""
        return self.values[-1]

    @property
    def question(self) -> str:
        """Its text: ``Ann has 8 bags of 7 pens. Buys 6 more. Gives 4 away. How many?``."""
        story = "".join(f" Buys {step} more." if step > 0 else f" Gives {-step} away." for step in self.steps)
        return f"{self.name} has {self.m} bags of {self.n} {self.noun}.{story} How many?"

    @property
    def solution(self) -> str:
        r"""The right response: ``8*7=56.So 56+6=62.So 62-4=58.\boxed{58}``."""
        return working(self.m, self.n, self.steps, self.values) + f"\\boxed{{{self.answer}}}"


def working(m: int, n: int, steps: tuple[int, ...], values: tuple[int, ...]) -> str:
    """The written steps with the given partial results, which need not be right: ``8*7=56.So 56+6=62.``."""
    parts = [f"{m}*{n}={values[0]}."]
    for step, before, after in zip(steps, values[:-1], values[1:], strict=True):
        parts.append(f"So {before}{step:+d}={after}.")
    return "".join(parts)


def draw_problem(generator: np.random.Generator) -> Problem:
    """A random problem with one to three steps, every partial result in 0…99."""
    m, n = (int(value) for value in generator.integers(2, 10, size=2))
    total, steps = m * n, []
    for _ in range(_pick(generator, STEP_COUNTS)):
        steps.append(_pick(generator, [step for step in range(-9, 10) if step and 0 <= total + step <= LARGEST]))
        total += steps[-1]
    return Problem(m, n, tuple(steps), _pick(generator, NAMES), _pick(generator, NOUNS))


def _pick(generator: np.random.Generator, options: Sequence[Option]) -> Option:
    return options[int(generator.integers(len(options)))]


def reserved_for_tasks(key: Key) -> bool:
    """Tell whether a problem is kept out of the base model's training: a fixed quarter, chosen by a hash of the key.

    Training and held-out problems of every task seed come from this quarter, so the base has seen none of them.
    """
    m, n, steps = key
    return seed_for(0, "quickstart", m, n, *steps) % 4 == 0


def draw_task(seed: int, count: int) -> list[Problem]:
    """``count`` problems of distinct keys, all of them ``reserved_for_tasks``."""
    generator = generator_for(seed, "quickstart", "problems")
    problems: dict[Key, Problem] = {}
    while len(problems) < count:
        problem = draw_problem(generator)
        if reserved_for_tasks(problem.key):
            problems.setdefault(problem.key, problem)
    return list(problems.values())
