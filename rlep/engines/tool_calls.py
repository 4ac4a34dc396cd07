"""Calls of tools in a policy's turn, as models of today write them; none of it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlep.core.episodes import ToolCall
from rlep.core.thinking import MARK

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_CALLS = 64
"""Calls of one turn that are read."""
LONGEST = 1 << 20
"""Characters of a turn that are read."""
_WHOLE = re.compile(r"\s*(?:\[\s*)?\{\s*\"(?:name|arguments|parameters)\"\s*:")
"""Beginning of a turn that is nothing but calls in JSON."""
_DECODER = json.JSONDecoder(parse_constant=lambda name: _refuse(f"{name} is no JSON"))


class _Unreadable(ValueError):
    """What is wrong with a call, said to the policy."""


def _refuse(why: str) -> None:
    raise _Unreadable(why)


def answer_of(text: str, opening: str = "") -> str:
    """The part of a turn after its thinking; empty where it never ends it. ``opening``: the mark that the prompt ends in."""
    marks = list(MARK.finditer(opening + text))
    if not marks:
        return text
    return (opening + text)[marks[-1].end() :] if marks[-1].group(1) else ""


def read_tool_calls(text: str) -> list[ToolCall]:
    """The calls that a text makes, in order; those that cannot be read have a ``fault``.

    Hermes, Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a text, the last one's end may be missing.
    Else, Llama: the whole text is such an object, or a list of them, where ``arguments`` may be called ``parameters``.
    """
    text = text[:LONGEST]
    if OPEN in text:
        return [call for call, _ in zip(_marked(text), range(MOST_CALLS), strict=False)]
    if _WHOLE.match(text) is None:
        return []
    try:
        found, end = _decoded(text, 0)
        if text[end:].strip():
            raise _Unreadable("a text follows it")
    except _Unreadable as error:
        return [_faulty(str(error))]
    items = found if isinstance(found, list) else [found]
    if not all(isinstance(item, dict) and {"arguments", "parameters"} & item.keys() for item in items):
        return []  # an answer in JSON
    return [_call(item) for item in items[:MOST_CALLS]]


def message_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """The calls in a message as chat templates have it, ``{"tool_calls": [{"function": {"name": …, "arguments": {…}}}]}``."""
    items = message.get("tool_calls")
    called = [item.get("function", item) if isinstance(item, dict) else item for item in _listed(items)[:MOST_CALLS]]
    return [_call(item) for item in called]


def _listed(items: object) -> list[Any]:
    return list(items) if isinstance(items, list | tuple) else [] if items is None else [items]


def _marked(text: str) -> Iterator[ToolCall]:
    place = text.find(OPEN)
    while place >= 0:
        place += len(OPEN)
        try:
            found, end = _decoded(text, place)
            left = text[end:].lstrip()
            if left and not left.startswith((CLOSE, OPEN)):
                raise _Unreadable(f"{CLOSE} does not follow it")
            yield _call(found)
        except _Unreadable as error:
            end = text.find(CLOSE, place)
            yield _faulty(str(error))
        place = text.find(OPEN, max(end, place))


def _decoded(text: str, place: int) -> tuple[Any, int]:
    while place < len(text) and text[place].isspace():
        place += 1
    try:
        return _DECODER.raw_decode(text, place)
    except _Unreadable:
        raise
    except RecursionError:
        raise _Unreadable("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _Unreadable(f"it is no JSON: {error.msg} at character {max(error.pos - place, 0)}") from None
    except ValueError as error:  # a number of thousands of digits
        raise _Unreadable(f"it is no JSON: {error}") from None


def _call(found: object) -> ToolCall:
    try:
        return _readable(found)
    except (_Unreadable, UnicodeEncodeError) as error:
        return _faulty(str(error))


def _readable(found: object) -> ToolCall:
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(name, str) or not name:
        raise _Unreadable('it is no object with the text "name" and the object "arguments"')
    name.encode()
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # JSON within JSON, as some models write
        arguments = _decoded(arguments, 0)[0] if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Unreadable(f'its "arguments" are no object, in the call of {name:.80}')
    try:
        return ToolCall(name, json.dumps(arguments, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise _Unreadable(f'its "arguments" are no JSON: {error}') from None


def _faulty(why: str) -> ToolCall:
    return ToolCall("", "{}", f"the call of a tool cannot be read: {why}")
