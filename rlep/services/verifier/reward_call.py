"""The user's reward functions as a judge: they ask for what they need by name, may be async, and several have weights."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rlep.core.scores import score_fault
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.judgement import BadScore, Judge, Judgement, judgement_of

OWN_NAMES = ("prompt", "response", "reference", "solution_str", "ground_truth")
"""Names of a parameter that a column of the row cannot take; the last two are verl's for ``response`` and ``reference``."""
BATCHED = ("prompts", "completions")
"""TRL's names. A function with one of them is given lists, of one item, and returns a list of one."""
SHOWN = ("response", "solution_str", "completions")
"""Names by which a function sees the response."""


class UnknownName(TypeError):
    """A function has a parameter that is neither a known name nor a column of the row: the response is ``crashed``."""


class Quit(RuntimeError):
    """A function raised what is meant to end its process, ``SystemExit`` for instance: the response is ``crashed``."""


class Messages(list[dict[str, object]]):
    """Chat messages as TRL gives them. A function that takes them for a text finds nothing in them, and is told so."""

    def __contains__(self, item: object) -> bool:
        return super().__contains__(_no_text(item))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(_no_text(other))

    def __ne__(self, other: object) -> bool:
        return super().__ne__(_no_text(other))

    __hash__ = None  # type: ignore[assignment]  # as a list


def _no_text(compared: object) -> object:
    """What messages may be compared with. Raises TypeError for a text."""
    if isinstance(compared, str):
        raise TypeError(
            f"{compared!r:.40} is looked for in chat messages, which completions and prompts are here because the row has no "
            'column prompt with a text: the text of a completion is completion[-1]["content"]'
        )
    return compared


class Term(NamedTuple):
    """One of the functions of a profile."""

    function: str
    """``module:name``."""
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.function.rpartition(":")[2]


def terms_of(functions: str) -> tuple[Term, ...]:
    """The functions in ``module:name`` or ``module:right,0.2*module:brief``. Raises ValueError naming what is wrong."""
    terms = []
    for text in functions.split(","):
        weight, star, function = text.strip().rpartition("*")
        module, _, name = function.partition(":")
        if not module or not name.isidentifier():
            raise ValueError(f"{text!r} is not of the form module:function or WEIGHT*module:function")
        terms.append(Term(function, _weight(weight, text) if star else 1.0))
    names = [term.name for term in terms]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"two functions are called {repeated}, the name of their part of the score: rename one")
    return tuple(terms)


def _weight(weight: str, text: str) -> float:
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{text!r}: the weight {weight!r} is not a number above 0")
    return number


class RewardFunction:
    """One function, and the names it asks for."""

    def __init__(self, function: Callable[..., object], name: str, *, threads: bool = False) -> None:
        """``threads``: call it in a thread, unless it is async.

        Raises ValueError for a bad ``score_range``, and for a function that cannot see the response.
        """
        self._function, self._name, self._threads = function, name, threads
        self.is_async = is_async(function)
        parameters = inspect.signature(function).parameters.values()
        self._ordered = any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._named = {parameter.name: parameter.default is parameter.empty for parameter in named}
        self._takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._batched = any(name in self._named for name in BATCHED)
        if not self._ordered and not {*SHOWN} & {*self._named} and not (self._batched and self._takes_rest):
            raise ValueError(
                f"{name} has no parameter {' or '.join(SHOWN)}, so every response would get the same score"
            )
        inner = getattr(function, "func", None)  # of a partial
        self._low, self._high = map(float, getattr(function, "score_range", getattr(inner, "score_range", (0.0, 1.0))))
        if not -math.inf < self._low < self._high < math.inf:
            raise ValueError(f"{name}.score_range = ({self._low:g}, {self._high:g}) is no range")

    async def judge(self, job: GradingJob) -> Judgement | None:
        """The function's judgement; None where one with TRL's names does not apply to the response."""
        try:
            returned: Any = await self._call(job)
        except BaseException as error:
            if isinstance(error, Exception | asyncio.CancelledError | GeneratorExit):
                raise
            said = f"{self._name} raised {type(error).__name__}: {error}"
            raise Quit(said).with_traceback(error.__traceback__) from None
        if self._batched:
            if not hasattr(returned, "__len__") or len(returned) != 1 or isinstance(returned, str | dict):
                raise BadScore(
                    f"it returned {returned!r:.60}: with TRL's names that is a list with one number for each"
                )
            returned = returned[0]
            if returned is None:
                return None
        found, extracted = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        return judgement_of(found, None if extracted is None else str(extracted), self._low, self._high)

    async def _call(self, job: GradingJob) -> object:
        ordered = (job.reference, job.answer) if self._ordered else ()
        call = partial(self._function, *ordered, **({} if self._ordered else self._arguments(job)))
        returned = await asyncio.to_thread(self._in_thread, call) if self._threads and not self.is_async else call()
        if self.is_async and inspect.isawaitable(returned):
            returned = await returned
        if inspect.iscoroutine(returned):
            returned.close()
            raise TypeError(f"{self._name} returned a coroutine: await it in {self._name}, declared with async def")
        return returned

    def _in_thread(self, call: Callable[[], object]) -> object:
        """Call it: a traceback is shown from below this frame."""
        return call()

    def _arguments(self, job: GradingJob) -> dict[str, object]:
        """The values of the names that it asks for. Raises UnknownName."""
        columns: dict[str, object] = json.loads(job.columns) if job.columns else {}
        own = dict(zip(OWN_NAMES, (job.prompt, job.answer, job.reference, job.answer, job.reference), strict=True))
        values: dict[str, object] = {"extra_info": {}} | columns | own
        if self._batched:
            values = {name: [value] for name, value in values.items()} | _batch(job, columns.get("prompt"))
        if unknown := [name for name, needed in self._named.items() if needed and name not in values]:
            raise UnknownName(
                f"{self._name} asks for {', '.join(unknown)}: that is neither prompt, response or reference nor a column of "
                f"the row, which has {', '.join(columns) or 'none'}"
            )
        rest = {*columns, *BATCHED} - {*OWN_NAMES} if self._takes_rest else set()
        return {name: value for name, value in values.items() if name in self._named or name in rest}


def _batch(job: GradingJob, prompt: object) -> dict[str, object]:
    """TRL's lists: of texts where the row has a text as its prompt, else of messages."""
    if isinstance(prompt, str):
        return {"prompts": [job.prompt], "completions": [job.answer]}
    asked: list[dict[str, object]] = prompt if isinstance(prompt, list) else [{"role": "user", "content": job.prompt}]
    said = Messages([{"role": "assistant", "content": job.answer}])
    return {"prompts": [Messages(asked)], "completions": [said]}


def is_async(function: Callable[..., object]) -> bool:
    """Tell whether a function, or an object's ``__call__``, is declared ``async``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def user_judge(task: str, *, threads: bool = False) -> Judge:
    """The functions of a profile, imported. Raises what the import raises, and ValueError or TypeError for a bad one."""
    terms = terms_of(task)
    functions = []
    for term in terms:
        function = getattr(importlib.import_module(term.function.partition(":")[0]), term.name)
        if isinstance(function, type):
            raise TypeError(f"{term.name} is a class: name an object of it, {term.name.lower()} = {term.name}(…)")
        if not callable(function):
            raise TypeError(f"{term.name} is a {type(function).__name__}, not a function")
        functions.append(function)
    return judge_of(terms, functions, threads=threads)


def judge_of(terms: Sequence[Term], functions: Sequence[Callable[..., object]], *, threads: bool = False) -> Judge:
    """Functions, one for each term, as a judge."""
    asked = [RewardFunction(one, term.name, threads=threads) for term, one in zip(terms, functions, strict=True)]

    async def judge(job: GradingJob) -> Judgement:
        found = [await function.judge(job) for function in asked]
        return joined(terms, found)

    return Judge(judge, any(function.is_async for function in asked))


def joined(terms: Sequence[Term], found: Sequence[Judgement | None]) -> Judgement:
    """The weighted mean of the functions that apply, with each one's score as a part under its name; of one function, its own.

    Raises BadScore where none applies, or with more than 16 parts.
    """
    applying = [(term, judged) for term, judged in zip(terms, found, strict=True) if judged is not None]
    if not applying:
        raise BadScore("it returned None: no function applies to this response")
    if len(terms) == 1:
        return applying[0][1]
    parts: dict[str, float] = {}
    for term, judged in applying:
        parts[term.name] = judged.credit
        parts |= {f"{term.name}.{name}": value for name, value in judged.parts.items()}
    score = math.fsum(term.weight * judged.credit for term, judged in applying)
    score /= math.fsum(term.weight for term, _ in applying)
    extracted = next((judged.extracted for _, judged in applying if judged.extracted is not None), None)
    if fault := score_fault(score, parts):
        raise BadScore(fault)
    return Judgement("correct" if score == 1.0 else "wrong", extracted, "", score, parts)
