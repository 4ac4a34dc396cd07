"""Calls of tools in a policy's turn, as models of today write them; none of it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlep.core.call_forms import (
    FUNCTION,
    PYTHON_LIST,
    Named,
    Types,
    UnreadableCallError,
    parameter_types,
    read_function,
    read_python,
    read_tagged,
)
from rlep.core.episodes import ToolCall
from rlep.core.thinking import MARK

OPEN, CLOSE = "<tool_call>", "</tool_call>"
OPEN_LIST, CLOSE_LIST = "<|tool_call_start|>", "<|tool_call_end|>"
CALL_MARKS = (OPEN, CLOSE, OPEN_LIST, CLOSE_LIST, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
"""Marks of calls that may be special tokens."""
MOST_CALLS = 64
"""Calls of one turn that are read."""
LONGEST = 1 << 20
"""Characters of a turn that are read."""
_BEGIN = re.compile("|".join(map(re.escape, (OPEN, OPEN_LIST, FUNCTION))))
_INNER = re.compile(rf"\s*{FUNCTION}")
"""The beginning of a call in XML right after a mark, which is the same call."""
_CLOSES = {OPEN: CLOSE, OPEN_LIST: CLOSE_LIST, FUNCTION: "</function>"}
_WHOLE = re.compile(r"\s*(?:\[\s*)?\{\s*(?:\"type\"\s*:\s*\"function\"\s*,\s*)?\"(?:name|arguments|parameters)\"\s*:")
"""Beginning of a turn that is nothing but calls in JSON."""
_DECODER = json.JSONDecoder(parse_constant=lambda name: _refuse(f"{name} is no JSON"))


def _refuse(why: str) -> None:
    raise UnreadableCallError(why)


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
    """Where the last call that begins between two places ends; 0 without one that can be read."""
    start, mark = max((text.rfind(mark, begin, place), mark) for mark in _CLOSES)
    try:
        if start >= 0:
            return _read_marked(text, start, mark, {})[1]
        return _decoded(text, begin)[1] if _WHOLE.match(text, begin, place) else 0
    except UnreadableCallError:
        return 0


def read_tool_calls(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """The calls that a text makes, in order; those that cannot be read have a ``fault``.

    Hermes, Qwen to Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a text, the last one's end may
    be missing. Qwen3.5, Nemotron 3, GLM: XML in place of the JSON, or without ``<tool_call>``, as ``call_forms`` has it;
    ``tools``, JSON schemas, say which values are texts. LFM2: ``<|tool_call_start|>[name(key="value")]<|tool_call_end|>``.
    Else, Llama: the whole text is such an object, or a list of them, where ``arguments`` may be called ``parameters``,
    and ``"type": "function"`` may come first; or a list of calls of ``tools`` in Python.
    """
    text, types = text[:LONGEST], parameter_types(tools)
    marked = _placed(text, types)
    return [call for _, calls in marked for call in calls][:MOST_CALLS] if marked else _whole(text, types)


def texts_and_calls(text: str) -> list[str | ToolCall]:
    """A turn for a reader: texts and the calls between them, in order; a call that cannot be read stays text. Texts may be empty.

    Worked example: ``Let me see. <tool_call>{"name": "add", "arguments": {}}</tool_call>`` is a text and a call.
    """
    read = text[:LONGEST]
    begin = len(read) - len(answer_of(read))  # thinking calls nothing
    if not _BEGIN.search(read, begin):
        calls = _whole(read[begin:], {})
        return [text[:begin], *calls, text[LONGEST:]] if calls and not any(call.fault for call in calls) else [text]
    found: list[str | ToolCall] = []
    plain = 0
    for (start, end), calls in _placed(read, {}, begin):
        if not any(call.fault for call in calls):
            found += [text[plain:start], *calls]
            plain = end
    return [*found, text[plain:]]


def _whole(text: str, types: Types) -> list[ToolCall]:
    if (python := PYTHON_LIST.match(text)) and python.group(1) in types:
        return _whole_python(text, types)
    if _WHOLE.match(text) is None:
        return []
    try:
        found, end = _decoded(text, 0)
        _check_end(text, end)
    except UnreadableCallError as error:
        return [_faulty(str(error))]
    items = found if isinstance(found, list) else [found]
    if not all(isinstance(item, dict) and {"arguments", "parameters"} & item.keys() for item in items):
        return []  # an answer in JSON
    return [_call(item) for item in items[:MOST_CALLS]]


def _whole_python(text: str, types: Types) -> list[ToolCall]:
    try:
        found, end = read_python(text, 0)
        _check_end(text, end)
    except UnreadableCallError as error:
        return [_faulty(str(error))]
    return [_named_call(one) for one in found[:MOST_CALLS]]


def _check_end(text: str, end: int) -> None:
    if text[end:].strip():
        raise UnreadableCallError("a text follows it")


def message_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """The calls in a message as chat templates have it, ``{"tool_calls": [{"function": {"name": …, "arguments": {…}}}]}``."""
    items = message.get("tool_calls")
    called = [item.get("function", item) if isinstance(item, dict) else item for item in _listed(items)[:MOST_CALLS]]
    return [_call(item) for item in called]


def _listed(items: object) -> list[Any]:
    return list(items) if isinstance(items, list | tuple) else [] if items is None else [items]


def _placed(text: str, types: Types, begin: int = 0) -> list[tuple[tuple[int, int], list[ToolCall]]]:
    """The marked calls from ``begin`` on, each mark's with where it begins and ends."""
    found: list[tuple[tuple[int, int], list[ToolCall]]] = []
    begun = _BEGIN.search(text, begin)
    while begun and sum(len(calls) for _, calls in found) < MOST_CALLS:
        mark, place = begun.group(), begun.end()
        try:
            calls, after = _read_marked(text, begun.start(), mark, types)
            going = after
        except UnreadableCallError as error:
            after = text.find(_CLOSES[mark], place)
            inner = _INNER.match(text, place)
            going = max(after, inner.end() if inner else place)
            calls = [_faulty(str(error))]
        found.append(((begun.start(), after), calls))
        begun = _BEGIN.search(text, going)
    return found


def _read_marked(text: str, start: int, mark: str, types: Types) -> tuple[list[ToolCall], int]:
    """The calls of a mark, and where its closing mark ends; that may be missing before another mark and at the end."""
    place = start if mark == FUNCTION else start + len(mark)
    calls, end = _content(text, place, mark, types)
    if mark == FUNCTION:
        return calls, end
    left = len(text) - len(text[end:].lstrip())
    if left == len(text) or text.startswith(tuple(_CLOSES), left):
        return calls, end
    if not text.startswith(_CLOSES[mark], left):
        raise UnreadableCallError(f"{_CLOSES[mark]} does not follow it")
    return calls, left + len(_CLOSES[mark])


def _content(text: str, place: int, mark: str, types: Types) -> tuple[list[ToolCall], int]:
    while place < len(text) and text[place].isspace():
        place += 1
    if mark == OPEN_LIST and PYTHON_LIST.match(text, place):
        listed, end = read_python(text, place)
        return [_named_call(one) for one in listed], end
    if text.startswith(FUNCTION, place):
        named, end = read_function(text, place, types)
        return [_named_call(named)], end
    if mark == OPEN and (tagged := read_tagged(text, place, types)):
        return [_named_call(tagged[0])], tagged[1]
    found, end = _decoded(text, place)
    return [_call(one) for one in (found if mark == OPEN_LIST and isinstance(found, list) else [found])], end


def _decoded(text: str, place: int) -> tuple[Any, int]:
    while place < len(text) and text[place].isspace():
        place += 1
    try:
        return _DECODER.raw_decode(text, place)
    except UnreadableCallError:
        raise
    except RecursionError:
        raise UnreadableCallError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UnreadableCallError(f"it is no JSON: {error.msg} at character {max(error.pos - place, 0)}") from None
    except ValueError as error:  # a number of thousands of digits
        raise UnreadableCallError(f"it is no JSON: {error}") from None


def _call(found: object) -> ToolCall:
    try:
        return _readable(found)
    except (UnreadableCallError, UnicodeEncodeError) as error:
        return _faulty(str(error))


def _readable(found: object) -> ToolCall:
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(name, str) or not name:
        raise UnreadableCallError('it is no object with the text "name" and the object "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # JSON within JSON, as some models write
        arguments = _decoded(arguments, 0)[0] if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise UnreadableCallError(f'its "arguments" are no object, in the call of {name:.80}')
    return _dumped(name, arguments)


def _named_call(named: Named) -> ToolCall:
    try:
        return _dumped(*named)
    except (UnreadableCallError, UnicodeEncodeError) as error:
        return _faulty(str(error))


def _dumped(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    name.encode()
    try:
        return ToolCall(name, json.dumps(arguments, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableCallError(f'its "arguments" are no JSON: {error}') from None


def _faulty(why: str) -> ToolCall:
    return ToolCall("", "{}", f"the call of a tool cannot be read: {why}")
