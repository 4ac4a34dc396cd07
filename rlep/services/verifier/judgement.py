"""The finding of a judge, and what a user's function may return as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

from rlep.core.printable import storable
from rlep.core.scores import OutOfRange, score_fault
from rlep.services.verifier.grading_job import GradingJob

MAX_EXTRACTED = 4000
"""Characters of an extracted text that a verdict keeps."""
_MAX_REPLIED = 1 << 19
"""Characters of a text that leave a worker: two fit into a frame, whatever they are."""


class BadScore(ValueError):
    """The user's function returned a score or parts that mean nothing: the response is ``crashed``."""


class Judgement(NamedTuple):
    """Finding of a judge."""

    status: str
    extracted: str | None
    failure: str = ""
    """Of what is ``crashed``: ``Kind: message``, and below it where in the user's function."""
    score: float | None = None
    parts: Mapping[str, float] = {}

    def reply(self, seconds: float) -> list[Any]:
        """``[status, extracted, seconds, failure]``, and of a score also ``[…, score, parts]``."""
        extracted = None if self.extracted is None else self.extracted[:_MAX_REPLIED]
        reply = [self.status, extracted, seconds, self.failure[:_MAX_REPLIED]]
        return reply if self.score is None else [*reply, self.score, self.parts]

    @property
    def credit(self) -> float:
        """``score``; without one 1 for ``correct`` and 0 for every other status."""
        return float(self.status == "correct") if self.score is None else self.score


class Judge(NamedTuple):
    """What a worker serves."""

    judge: Callable[[GradingJob], Coroutine[Any, Any, Judgement]]
    """May run for ever, exhaust memory, or kill its process."""
    is_async: bool = False
    """It waits for something in an event loop; without, it never gives up control."""


def judgement_of(found: object, extracted: str | None, low: float = 0.0, high: float = 1.0) -> Judgement:
    """A bool as it is; a number, or a mapping with ``score`` and named parts, with its score, of [low, high] moved to [0, 1].

    A text in a mapping is no part; the first one is what was extracted, as verl's functions say it under ``pred``.
    Raises OutOfRange, and BadScore for anything else.
    """
    found = _unboxed(found)
    said = _texts(found)
    extracted = next((text for text in said.values() if text is not None), None) if extracted is None else extracted
    extracted = None if extracted is None else storable(extracted)
    if isinstance(found, bool):
        return Judgement("correct" if found else "wrong", extracted)
    if isinstance(found, Mapping):
        parts = {name: _number(name, value) for name, value in found.items() if name not in said}
        if "score" not in parts:
            raise BadScore('a mapping of named parts needs the key "score", the reward')
        score = parts.pop("score")
    elif isinstance(found, Real | Decimal):
        score, parts = float(found), {}
    else:
        raise BadScore(
            f"it returned {found!r:.60} ({type(found).__name__}), which is neither a bool, a number nor a mapping"
        )
    # Sums of floats miss the ends: 0.7 + 0.2 + 0.1 is less than 1.
    score = next((end for end in (low, high) if math.isclose(score, end, rel_tol=1e-9, abs_tol=1e-9)), score)
    if not math.isfinite(score):
        raise BadScore(f"score {score} is not finite")
    if not low <= score <= high:
        raise OutOfRange(
            f"score {score:g} does not lie in [{low:g}, {high:g}]; scale it, or declare its range as the function's "
            "attribute score_range, e.g. (-1.0, 2.0)"
        )
    score = (score - low) / (high - low)
    if fault := score_fault(score, parts):
        raise BadScore(fault)
    return Judgement("correct" if score == 1.0 else "wrong", extracted, "", score, parts)


def _texts(found: object) -> dict[object, str | None]:
    if not isinstance(found, Mapping):
        return {}
    return {
        name: value for name, value in found.items() if name != "score" and (value is None or isinstance(value, str))
    }


def _unboxed(value: object) -> object:
    """A scalar of numpy or torch as Python's own."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _number(name: object, value: object) -> float:
    value = _unboxed(value)
    if not isinstance(name, str) or not isinstance(value, Real | Decimal):
        raise BadScore(f"{name!r:.80}: {value!r:.60} is not a number under a name")
    return float(value)
