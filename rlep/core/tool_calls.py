"""Calls of tools in a policy's turn, as models of today write them; none of it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlep.core.episodes import ToolCall
from rlep.core.thinking import MARK

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_CALLS = 64
"""Calls of one turn that are read."""
LONGEST = 1 << 20
"""Characters of a turn that are read."""
_WHOLE = re.compile(r"\s*(?:\[\s*)?\{\s*(?:\"type\"\s*:\s*\"function\"\s*,\s*)?\"(?:name|arguments|parameters)\"\s*:")
"""Beginning of a turn that is nothing but calls in JSON."""
_DECODER = json.JSONDecoder(parse_constant=lambda name: _refuse(f"{name} is no JSON"))


class _Unreadable(ValueError):
    """Fault of a call, said to the policy."""


def _refuse(why: str) -> None:
    raise _Unreadable(why)


def answer_of(text: str, opening: str = "") -> str:
    """The part of a turn after its thinking; empty where it never ends it. ``opening``: the mark that the prompt ends in.

    A mark in an argument of a call is a part of that argument.
    """
    whole = opening + text
    begin, place, thinks, looks = 0, 0, False, MOST_CALLS
    while mark := MARK.search(whole, place):
        place = mark.end()
        if not thinks and looks:
            looks -= 1
            if (end := _end_of_call(whole, begin, mark.start())) > mark.start():
                place = end
                continue
        thinks = not mark.group(1)
        begin = begin if thinks else mark.end()
    return "" if thinks else whole[begin:] if begin else text


def _end_of_call(text: str, begin: int, place: int) -> int:
    """Where the JSON of the last call that begins between two places ends; 0 without one that can be read."""
    start = text.rfind(OPEN, begin, place)
    if start < 0 and _WHOLE.match(text, begin, place) is None:
        return 0
    try:
        return _decoded(text, begin if start < 0 else start + len(OPEN))[1]
    except _Unreadable:
        return 0


def read_tool_calls(text: str) -> list[ToolCall]:
    """The calls that a text makes, in order; those that cannot be read have a ``fault``.

    Hermes, Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a text, the last one's end may be missing.
    Else, Llama: the whole text is such an object, or a list of them, where ``arguments`` may be called ``parameters``,
    and ``"type": "function"`` may come first.
    """
    text = text[:LONGEST]
    return [call for _, call in _placed(text)] if OPEN in text else _whole(text)


def texts_and_calls(text: str) -> list[str | ToolCall]:
    """A turn for a reader: texts and the calls between them, in order; a call that cannot be read stays text. Texts may be empty.

    Worked example: ``Let me see. <tool_call>{"name": "add", "arguments": {}}</tool_call>`` is a text and a call.
    """
    read = text[:LONGEST]
    begin = len(read) - len(answer_of(read))  # thinking calls nothing
    if OPEN not in read[begin:]:
        calls = _whole(read[begin:])
        return [text[:begin], *calls, text[LONGEST:]] if calls and not any(call.fault for call in calls) else [text]
    found: list[str | ToolCall] = []
    plain = 0
    for (start, end), call in _placed(read, begin):
        if not call.fault:
            found += [text[plain:start], call]
            plain = end
    return [*found, text[plain:]]


def _whole(text: str) -> list[ToolCall]:
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


def _placed(text: str, begin: int = 0) -> list[tuple[tuple[int, int], ToolCall]]:
    """The marked calls from ``begin`` on, each with where it begins and ends."""
    found: list[tuple[tuple[int, int], ToolCall]] = []
    start = text.find(OPEN, begin)
    while start >= 0 and len(found) < MOST_CALLS:
        place = start + len(OPEN)
        try:
            read, end = _decoded(text, place)
            left = text[end:].lstrip()
            if left and not left.startswith((CLOSE, OPEN)):
                raise _Unreadable(f"{CLOSE} does not follow it")
            call = _call(read)
            after = len(text) - len(left) + len(CLOSE) if left.startswith(CLOSE) else end
        except _Unreadable as error:
            end = after = text.find(CLOSE, place)
            call = _faulty(str(error))
        found.append(((start, after), call))
        start = text.find(OPEN, max(end, place))
    return found


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
