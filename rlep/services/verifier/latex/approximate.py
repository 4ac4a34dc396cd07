"""Answers that are stated with ``≈``."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from rlep.services.verifier.latex.compute import evaluate
from rlep.services.verifier.latex.nodes import is_closed
from rlep.services.verifier.latex.points import Matrix, NoValue, SamplePoint, Scalar, number
from rlep.services.verifier.latex.same import consistent
from rlep.services.verifier.latex.statements import Answer


def holds(answers: Sequence[Answer | None]) -> bool:
    """Tell whether the sides of ``≈`` can be read, hold, and lie within 1 % of the first where they have no unknowns."""
    numbers: list[Scalar] = []
    for answer in answers:
        if answer is None or answer.form != "one" or not consistent(answer.items[0]):
            return False
        side = answer.items[0].value
        if not is_closed(side):
            continue
        try:
            value = evaluate(side, SamplePoint("approximate", imaginary=True))
        except NoValue:
            return False
        if isinstance(value, Matrix):
            return False
        numbers.append(number(value))
    return all(abs(value - numbers[0]) <= abs(numbers[0]) / 100 for value in numbers)


def is_rational(answer: Answer | None) -> bool:
    """Tell whether an answer is one fraction."""
    if answer is None or answer.form != "one" or not is_closed(answer.items[0].value):
        return False
    try:
        return isinstance(evaluate(answer.items[0].value, SamplePoint("rational", imaginary=True)), Fraction)
    except NoValue:
        return False
