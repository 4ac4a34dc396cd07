"""Calls of tools in turns as models write them, well and badly."""

from __future__ import annotations

import json

import pytest

from rlep.core.episodes import ToolCall
from rlep.core.tool_calls import MOST_CALLS, answer_of, message_calls, read_tool_calls

ADD = ToolCall("add", '{"a": 2, "b": 3}')
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        HERMES,
        f"I add them.\n{HERMES}",
        HERMES.removesuffix("\n</tool_call>"),
        '<tool_call>{"arguments": {"a": 2, "b": 3}, "name": "add"}</tool_call> Done.',
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 2, \\"b\\": 3}"}</tool_call>',
        '{"name": "add", "arguments": {"a": 2, "b": 3}}',
        ' {"name": "add", "parameters": {"a": 2, "b": 3}}\n',
        '[{"name": "add", "arguments": {"a": 2, "b": 3}}]',
        '{"type": "function", "name": "add", "parameters": {"a": 2, "b": 3}}',
    ],
)
def test_one_call_in_the_forms_of_hermes_qwen_and_llama(text: str) -> None:
    assert read_tool_calls(text) == [ADD]


def test_several_calls_keep_their_order_and_a_bad_one_spoils_no_other() -> None:
    ping = ToolCall("ping", "{}")
    text = f'{HERMES}\n<tool_call>{{"name": "ping"}}</tool_call><tool_call>{{"name": oops}}</tool_call>{HERMES}'
    first, second, third, fourth = read_tool_calls(text)
    assert (first, second, fourth) == (ADD, ping, ADD)
    assert third.fault == "the call of a tool cannot be read: it is no JSON: Expecting value at character 9"


def test_a_text_inside_an_argument_is_not_the_end_of_a_call() -> None:
    inside = {"text": "write </tool_call> and <tool_call> here"}
    text = f"<tool_call>{json.dumps({'name': 'say', 'arguments': inside})}</tool_call>"
    (call,) = read_tool_calls(text)
    assert (call.name, json.loads(call.arguments)) == ("say", inside)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The sum is 5.",
        r"\boxed{5}",
        "{x | x > 0}",
        '{"answer": 5}',
        "[1, 2]",
        '{"names": 5}',
        '{"name": "Ann"}',
        '{"type": "sum", "name": "Ann", "parameters": {}}',
        '{"type": "function", "slope": 2}',
        "add(2, 3)",
    ],
)
def test_a_text_without_a_call_is_an_answer(text: str) -> None:
    assert read_tool_calls(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>", "no JSON: Expecting value at character 0"),
        ("<tool_call>add(2, 3)</tool_call>", "no JSON: Expecting value at character 0"),
        ('<tool_call>{"name": "add", "arguments": {"a": 2</tool_call>', "no JSON: "),
        ('<tool_call>{"name": 5}</tool_call>', 'it is no object with the text "name"'),
        ("<tool_call>[1]</tool_call>", 'it is no object with the text "name"'),
        (
            '<tool_call>{"name": "add", "arguments": [2, 3]}</tool_call>',
            '"arguments" are no object, in the call of add',
        ),
        ('<tool_call>{"name": "add", "arguments": "2 3"}</tool_call>', '"arguments" are no object, in the call of add'),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "NaN is no JSON"),
        ('<tool_call>{"name": "add"} and so on</tool_call>', "</tool_call> does not follow it"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "surrogates not allowed"),
        (f'<tool_call>{{"name": "add", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>', "it is no JSON: Exceeds"),
        (f'<tool_call>{{"name": "add", "arguments": {"[" * 100_000}</tool_call>', "nested too deeply"),
        ('{"name": "add", "arguments": {"a": 2}} is my call', "a text follows it"),
        ('{"name": "add", "arguments": {"a": }}', "no JSON: Expecting value"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text: str, why: str) -> None:
    (call,) = read_tool_calls(text)
    assert why in call.fault
    assert (call.name, call.arguments) == ("", "{}")


def test_of_very_many_calls_the_first_are_read() -> None:
    assert read_tool_calls(HERMES * 1000) == [ADD] * MOST_CALLS
    assert len(read_tool_calls("<tool_call>" * 100_000)) == MOST_CALLS
    listed = json.dumps([{"name": "p", "arguments": {}}] * 1000)
    assert read_tool_calls(listed) == [ToolCall("p", "{}")] * MOST_CALLS


@pytest.mark.parametrize(
    ("text", "opening", "answer"),
    [
        ("5", "", "5"),
        ("<think>maybe 4</think> 5", "", " 5"),
        ("maybe 4</think> 5", "<think>", " 5"),
        ("maybe 4", "<think>", ""),
        ("<think>a</think> 5 <think>b", "", ""),
    ],
)
def test_calls_are_looked_for_after_the_thinking(text: str, opening: str, answer: str) -> None:
    assert answer_of(text, opening) == answer


@pytest.mark.parametrize("mark", ["<think>", "</think>", "[THINK]", "</think> <think>"])
@pytest.mark.parametrize("before", ["", "<think>I say it.</think>\n", "I say it.</think>"])
@pytest.mark.parametrize("around", ["<tool_call>{}</tool_call>", "{}"])
def test_a_mark_of_thinking_in_an_argument_ends_and_begins_no_thinking(mark: str, before: str, around: str) -> None:
    said = json.dumps({"name": "say", "arguments": {"text": mark}})
    call = ToolCall("say", json.dumps({"text": mark}))
    assert read_tool_calls(answer_of(before + around.replace("{}", said))) == [call]
    thought = f"<think>{around.replace('{}', said)}"
    assert "say" not in "".join(call.name for call in read_tool_calls(answer_of(thought)))


def test_a_parsed_message_has_its_calls() -> None:
    function = {"name": "add", "arguments": {"a": 2, "b": 3}}
    assert message_calls({"role": "assistant", "content": "5"}) == []
    assert message_calls({"tool_calls": [{"type": "function", "function": function}]}) == [ADD]
    assert message_calls({"tool_calls": function}) == [ADD]
    (bad,) = message_calls({"tool_calls": ["add"]})
    assert "no object" in bad.fault


LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "properties": {
                "text": {"type": "string"},
                "code": {"type": "string", "nullable": True},
                "limit": {"type": "integer"},
                "exact": {"type": "boolean"},
                "options": {"anyOf": [{"type": "object"}, {"type": "string"}]},
            }
        },
    },
}
VALUES = {"text": 'say "\u00e9"\n <b>', "code": "75001", "limit": 3, "exact": True, "options": {"near": [1, None]}}
WRITTEN = {"text": VALUES["text"], "code": "75001", "limit": "3", "exact": "True", "options": '{"near": [1, null]}'}
XML = "<function=look_up>\n{}</function>".format(
    "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in WRITTEN.items())
)
TAGGED = "look_up\n" + "".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in WRITTEN.items()
)
PYTHON = "[look_up(text='say \"\u00e9\"\\n <b>', code=\"75001\", limit=3, exact=True, options={'near': [1, null]})]"


@pytest.mark.parametrize(
    "text",
    [
        f"Let me see.\n<tool_call>\n{XML}\n</tool_call>",
        f"<tool_call>{XML}",
        XML,
        f"<seed:tool_call>\n{XML}\n</seed:tool_call>",
        f"<tool_call>{TAGGED}</tool_call>",
        f"<tool_call>{TAGGED}".replace("\n<arg", "<arg"),
        f"<|tool_call_start|>{PYTHON}<|tool_call_end|>Done.",
        PYTHON.replace("\\n", "\n"),
    ],
)
def test_calls_in_xml_and_python_have_the_types_of_the_tool(text: str) -> None:
    (call,) = read_tool_calls(text, [LOOK_UP])
    assert (call.fault, call.name, json.loads(call.arguments)) == ("", "look_up", VALUES)


def test_a_list_in_python_calls_only_what_is_a_tool() -> None:
    assert read_tool_calls("[f(x=2), f(x=3)]", [LOOK_UP]) == []
    assert read_tool_calls("[look_up(limit=2), look_up()]", [LOOK_UP]) == [
        ToolCall("look_up", '{"limit": 2}'),
        ToolCall("look_up", "{}"),
    ]
    assert read_tool_calls("<tool_call>ping</tool_call>") == [ToolCall("ping", "{}")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call><function=f><parameter=a>1", "the value of a has no end"),
        ("<tool_call><function=f>1</function></tool_call>", "</function> does not follow, in the call of f"),
        ("<tool_call><function=>", "not followed by a name"),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>", "the value of a has no end"),
        ("<|tool_call_start|>[f(1)]<|tool_call_end|>", "not written as key=value"),
        (f"<|tool_call_start|>[f(a={'[' * 100_000})]<|tool_call_end|>", "nested too deeply"),
        (f"<|tool_call_start|>[f(a={'9' * 5000})]<|tool_call_end|>", "Exceeds the limit"),
        ("<|tool_call_start|>[f(a=1e999)]<|tool_call_end|>", "no JSON"),
        ("<function=f>" + "<parameter=a></parameter>" * 2 + "<parameter=b>" * 9, "has no end"),
    ],
)
def test_a_call_in_xml_or_python_that_cannot_be_read_says_why(text: str, why: str) -> None:
    (call,) = read_tool_calls(text)
    assert why in call.fault


@pytest.mark.parametrize(
    "piece",
    [
        "<function=f>",
        "<tool_call><function=f><parameter=a>",
        "<tool_call><function=f><parameter=a></parameter>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
        "<|tool_call_start|>[f(a='",
        "<|tool_call_start|>[f(a={'",
        "<tool_call><function=f><parameter=a>\n</think>",
        "<|tool_call_start|>[f(a=[",
    ],
)
def test_endless_calls_are_read_to_the_limit(piece: str) -> None:
    assert len(read_tool_calls(answer_of(piece * 40_000))) <= MOST_CALLS


@pytest.mark.parametrize("call", [XML, f"<tool_call>{TAGGED}</tool_call>"])
def test_a_mark_of_thinking_in_a_value_of_xml_ends_no_thinking(call: str) -> None:
    said = call.replace("<b>", "</think>")
    assert answer_of(f"<think>hm</think>{said}") == said
    (read,) = read_tool_calls(said, [LOOK_UP])
    assert json.loads(read.arguments)["text"] == 'say "\u00e9"\n </think>'
