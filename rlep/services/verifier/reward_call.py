"""The user's function as a judge."""

from __future__ import annotations

import importlib
import math

from rlep.services.verifier.judgement import Judge, Judgement, judgement_of


def user_judge(task: str) -> Judge:
    """The user's function ``f(reference, response) -> found``, or ``-> (found, extracted)``, as a judge.

    Its attribute ``score_range`` declares scores in another range than [0, 1], e.g. ``(-1.0, 2.0)``.
    """
    module, _, name = task.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}, not a function")
    low, high = map(float, getattr(function, "score_range", (0.0, 1.0)))
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"{name}.score_range = ({low:g}, {high:g}) is no range")

    def judge(reference: str, response: str) -> Judgement:
        returned = function(reference, response)
        found, extracted = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        return judgement_of(found, None if extracted is None else str(extracted), low, high)

    return judge
