"""An episode for a reader: turns, calls of tools and what they answered, from its mask and its texts.

It is only for looking at: nothing that is trained on, graded or stored is read by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlep.core.episodes import ToolCall
from rlep.core.thinking import MARK
from rlep.core.tool_calls import texts_and_calls
from rlep.core.types import BoolArray, Int32Array, Int64Array

ANSWER = ("<tool_response>", "</tool_response>")
LONGEST_MARKS = 80
"""Characters in which the name after an answer is looked for."""
_BEFORE = re.compile(r"\s{0,8}(?:user|tool|ipython|observation|environment)\n")
_AFTER = re.compile(rf"(?:assistant|model)\s*(?:{MARK.pattern}\s*){{0,2}}\Z")
"""Names that templates give to who answers and who goes on: they stay in a text when its special tokens are left out."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Text of the policy, and what its environment answered."""

    said: tuple[str | ToolCall, ...]
    """Texts and calls in their order."""
    before: str = ""
    """What the template wrote before the answers, e.g. ``user``."""
    answers: tuple[str, ...] = ()
    """Texts of the environment, e.g. one for each call; none after the last turn."""
    after: str = ""
    """What the template wrote after them, e.g. ``assistant``."""


def parts_of(sampled: BoolArray) -> Int64Array:
    """Where the parts of an episode end, in tokens, ``[P]``: the policy's and its environment's in turn.

    The policy's comes first; it is empty where the environment began. ``[T T F T]`` is ``[2 3 4]``, ``[F T]`` is ``[0 1 2]``.
    """
    edges = [*(np.flatnonzero(np.diff(sampled)) + 1), len(sampled)]
    return np.array(edges if sampled[:1].all() else [0, *edges], dtype=np.int64)


def part_texts(tokens: Int32Array, sampled: BoolArray, decode: Callable[[Int32Array], str]) -> list[str]:
    """The texts of the parts of an episode of tokens ``[T]``, see ``parts_of``."""
    return [decode(part) for part in np.split(tokens, parts_of(sampled)[:-1])]


def text_and_ends(
    tokens: Int32Array, sampled: BoolArray | None, decode: Callable[[Int32Array], str]
) -> tuple[str, list[int] | None]:
    """The text of a response, and where the parts of an episode end in it, in characters; None where it is no episode."""
    if sampled is None:
        return decode(tokens), None
    texts = part_texts(tokens, sampled, decode)
    return "".join(texts), np.cumsum([len(text) for text in texts]).tolist()


def split_text(text: str, ends: Sequence[int | None]) -> list[str]:
    """The parts of an episode's text; what ``ends`` says that cannot be is put right, and every character is in one part."""
    places = [0]
    for end in ends[:-1]:
        places.append(min(max(places[-1], end or 0), len(text)))
    return [text[start:end] for start, end in zip(places, [*places[1:], len(text)], strict=True)]


def turns_of(parts: Sequence[str]) -> list[Turn]:
    """The turns of an episode, given as the texts of its parts."""
    pairs = [(parts[at], parts[at + 1] if at + 1 < len(parts) else "") for at in range(0, len(parts), 2)]
    return [Turn(_said(policy), *_answered(environment)) for policy, environment in pairs]


def lines_of(parts: Sequence[str]) -> Iterator[tuple[Literal["turn", "says", "calls", "answer"], str]]:
    """Kind and text of all that was written in the turns of an episode, given as the texts of its parts; a turn has its number.

    A call is its name and, on lines of their own, its arguments.
    """
    for number, turn in enumerate(turns_of(parts), 1):
        yield "turn", str(number)
        for said in turn.said:
            if isinstance(said, str):
                yield "says", said.strip("\n")
            else:
                yield (
                    "calls",
                    "\n".join([said.name, *(f"  {name}: {value}" for name, value in arguments_of(said).items())]),
                )
        for answer in turn.answers:
            yield "answer", answer


def arguments_of(call: ToolCall) -> dict[str, str]:
    """Name and value of each argument of a call: a text as it is, anything else as JSON."""
    try:
        values = json.loads(call.arguments)
        return {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in values.items()
        }
    except RecursionError:
        return {"arguments": call.arguments}


def _said(text: str) -> tuple[str | ToolCall, ...]:
    return tuple(one for one in texts_and_calls(text) if isinstance(one, ToolCall) or one.strip())


def _answered(text: str) -> tuple[str, tuple[str, ...], str]:
    """The marks before, the answers and the marks after; without both names of a template all is one answer."""
    if not text:
        return "", (), ""
    before = _BEFORE.match(text)
    begin = before.end() if before else 0
    after = _AFTER.search(text, max(begin, len(text) - LONGEST_MARKS))
    if before is None or after is None:
        return "", _answers(text), ""
    return before.group(), _answers(text[begin : after.start()]), after.group()


def _answers(body: str) -> tuple[str, ...]:
    found = []
    rest = body.strip()
    while rest.startswith(ANSWER[0]) and (end := rest.find(ANSWER[1])) >= 0:
        found.append(rest[len(ANSWER[0]) : end].strip("\n"))
        rest = rest[end + len(ANSWER[1]) :].lstrip()
    return tuple(found) if found and not rest else (body.strip("\n"),)
