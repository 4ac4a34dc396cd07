"""Calls of tools in other forms than JSON: XML, as Qwen3.5, Nemotron 3 and GLM write them, and Python, as LFM2 writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_ARGUMENTS = 256
"""Arguments of one call, and values in a list of Python, that are read."""
MAX_DEPTH = 64
"""Levels of lists and objects that are read in a value."""
FUNCTION = "<function="
Types = Mapping[str, Mapping[str, frozenset[str]]]
"""Name of a tool → name of a parameter → JSON types of its schema; no types where it takes any value."""
Named = tuple[str, dict[str, Any]]
"""Name and arguments of a call."""

_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*+(?:<parameter=|</function>))")
_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>")
_TAGGED = re.compile(r"([A-Za-z_][\w.:/-]*)\s*(?=<arg_key>|</tool_call>|\Z)")
_KEY = re.compile(r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*+(?:<arg_key>|</tool_call>|\Z))")
PYTHON_LIST = re.compile(r"\s*\[\s*(?=([A-Za-z_][\w.-]*)\()")
"""Beginning of a list of calls in Python, ``[name(…)``; group 1 is the first name."""
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\(\s*")
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_SPACE = re.compile(r"\s*")
_FOLLOWS = r"\s*+(?:[,)\]}:]|\Z)"
_TEXT = re.compile(rf"""'((?:[^'\\]|\\.|'(?!{_FOLLOWS}))*+)'|"((?:[^"\\]|\\.|"(?!{_FOLLOWS}))*+)\"""", re.DOTALL)
"""A quoted text; a quote that nothing of the syntax follows is a part of it, since templates write texts as they are."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""} | {sign: sign for sign in "\\'\"/"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?(?![\w.])")
_CONSTANT = re.compile(r"(?:[Tt]rue|[Ff]alse|None|null)\b")
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None}


class UnreadableCallError(ValueError):
    """Fault of a call, said to the policy."""


def parameter_types(tools: Sequence[Mapping[str, Any]]) -> Types:
    """Return the types of each tool's parameters, from schemas as chat templates get them."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: {
            name: frozenset(_types(schema))
            for name, schema in function.get("parameters", {}).get("properties", {}).items()
        }
        for function in functions
    }


def _types(schema: Mapping[str, Any]) -> list[str]:
    stated = schema.get("type", [])
    found = [stated] if isinstance(stated, str) else list(stated)
    for choice in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        found += _types(choice)
    return [*found, "null"] if schema.get("nullable") else found


def read_function(text: str, place: int, types: Types) -> tuple[Named, int]:
    """``<function=name><parameter=key>value</parameter></function>`` at ``place``, and where it ends."""
    named = _FUNCTION.match(text, place)
    if named is None:
        raise UnreadableCallError("<function= is not followed by a name and >")
    values, end = _tagged_values(text, named.end(), _PARAMETER, _PARAMETER_END)
    closed = _FUNCTION_END.match(text, end)
    if closed is None:
        raise UnreadableCallError(f"</function> does not follow, in the call of {named.group(1):.80}")
    return _typed(named.group(1).strip(), values, types), closed.end()


def read_tagged(text: str, place: int, types: Types) -> tuple[Named, int] | None:
    """``name<arg_key>key</arg_key><arg_value>value</arg_value>`` at ``place``, and where it ends; None for another form."""
    named = _TAGGED.match(text, place)
    if named is None:
        return None
    values, end = _tagged_values(text, named.end(), _KEY, _VALUE_END)
    return _typed(named.group(1), values, types), end


def _tagged_values(text: str, place: int, begins: re.Pattern[str], ends: re.Pattern[str]) -> tuple[dict[str, str], int]:
    values: dict[str, str] = {}
    while begun := begins.match(text, place):
        ended = ends.search(text, begun.end())
        if ended is None:
            raise UnreadableCallError(f"the value of {begun.group(1):.80} has no end")
        _check_count(values)
        values[begun.group(1).strip()] = text[begun.end() : ended.start()]
        place = ended.end()
    return values, place


def _typed(name: str, values: Mapping[str, str], types: Types) -> Named:
    known = types.get(name, {})
    return name, {key: _value_of(value, known.get(key, frozenset())) for key, value in values.items()}


def _value_of(written: str, types: frozenset[str]) -> Any:
    """The value of a parameter: the text, where only a text is taken or it reads as nothing else."""
    if types == {"string"}:
        return written
    try:
        value, end = _read_value(written, 0)
    except UnreadableCallError:
        return written
    quoted = isinstance(value, str)
    unasked = "string" in types and not types & _types_of(value)
    return written if quoted or unasked or written[end:].strip() else value


def _types_of(value: object) -> frozenset[str]:
    if isinstance(value, bool | None):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        return frozenset({"number", "integer"} if isinstance(value, int) else {"number"})
    return frozenset({"array" if isinstance(value, list) else "object"})


def read_python(text: str, place: int) -> tuple[list[Named], int]:
    """``[name(key=value, …), …]`` at ``place``, whose values are Python's or JSON's, and where it ends."""
    calls: list[Named] = []
    begun = PYTHON_LIST.match(text, place)
    if begun is None:
        raise UnreadableCallError("it is no list of calls, [name(key=value)]")
    place, going = begun.end(), True
    while going:
        named = _NAME.match(text, place)
        if named is None:
            raise UnreadableCallError("it is no list of calls, [name(key=value)]")
        arguments, place = _read_keywords(text, named.end())
        calls.append((named.group(1), arguments))
        _check_count(calls)
        going, place = _goes_on(text, place, "]")
    return calls, place


def _read_keywords(text: str, place: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    going = not text.startswith(")", place)
    place += not going
    while going:
        key = _KEYWORD.match(text, place)
        if key is None:
            raise UnreadableCallError("its arguments are not written as key=value")
        found[key.group(1)], place = _read_value(text, key.end())
        _check_count(found)
        going, place = _goes_on(text, place, ")")
    return found, place


def _read_value(text: str, place: int, depth: int = 0) -> tuple[Any, int]:
    """A value of Python or JSON, and where it ends."""
    if depth > MAX_DEPTH:
        raise UnreadableCallError("it is nested too deeply")
    place = _skip_space(text, place)
    sign = text[place : place + 1]
    if sign == "[":
        return _read_items(text, place + 1, depth)
    if sign == "{":
        return _read_pairs(text, place + 1, depth)
    if quoted := _TEXT.match(text, place):
        body = next(group for group in quoted.groups() if group is not None)
        return _ESCAPE.sub(_unescape, body), quoted.end()
    if number := _NUMBER.match(text, place):
        try:
            return (float if any(number.groups()) else int)(number.group()), number.end()
        except ValueError as error:  # thousands of digits
            raise UnreadableCallError(str(error)) from None
    if constant := _CONSTANT.match(text, place):
        return _CONSTANTS[constant.group().lower()], constant.end()
    raise UnreadableCallError(f"no value begins at {text[place : place + 20]!r}")


def _read_items(text: str, place: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    empty = _skip_space(text, place)
    if text.startswith("]", empty):
        return found, empty + 1
    going = True
    while going:
        value, place = _read_value(text, place, depth + 1)
        found.append(value)
        going, place = _goes_on(text, place, "]")
    return found, place


def _read_pairs(text: str, place: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    empty = _skip_space(text, place)
    if text.startswith("}", empty):
        return found, empty + 1
    going = True
    while going:
        key, place = _read_value(text, place, depth + 1)
        place = _skip_space(text, place)
        if not isinstance(key, str) or not text.startswith(":", place):
            raise UnreadableCallError("an object has a key that is no text, or no value for it")
        found[key], place = _read_value(text, place + 1, depth + 1)
        going, place = _goes_on(text, place, "}")
    return found, place


def _goes_on(text: str, place: int, end: str) -> tuple[bool, int]:
    """Tell whether a comma, not ``end``, follows, and return the place after it."""
    place = _skip_space(text, place)
    if text[place : place + 1] not in (",", end) or place == len(text):
        raise UnreadableCallError(f"neither a comma nor {end} follows at {text[place : place + 20]!r}")
    return text[place] == ",", place + 1


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _unescape(found: re.Match[str]) -> str:
    sign = found.group(1)
    if len(sign) > 1:
        return chr(int(sign[1:], 16))
    return _ESCAPED.get(sign, found.group())


def _check_count(found: Mapping[str, Any] | Sequence[Any]) -> None:
    if len(found) > MAX_ARGUMENTS:
        raise UnreadableCallError(f"it has more than {MAX_ARGUMENTS} arguments or calls")
