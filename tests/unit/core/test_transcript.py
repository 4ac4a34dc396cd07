"""Turns of an episode: where its parts end in tokens and in text, calls, answers and the marks of a template."""

from __future__ import annotations

import numpy as np
import pytest

from rlep.core.episodes import ToolCall
from rlep.core.transcript import Turn, arguments_of, lines_of, part_texts, parts_of, split_text, text_and_ends, turns_of
from rlep.core.types import Int32Array


def letters(tokens: Int32Array) -> str:
    return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("mask", "ends"),
    [
        ("TTFT", [2, 3, 4]),
        ("T", [1]),
        ("TTT", [3]),
        ("TFFTFT", [1, 3, 4, 5, 6]),
        ("FT", [0, 1, 2]),  # the policy's part comes first, without a token
        ("TF", [1, 2]),
        ("", [0]),
    ],
)
def test_parts_are_the_runs_of_the_mask(mask: str, ends: list[int]) -> None:
    assert parts_of(np.array([one == "T" for one in mask], dtype=np.bool_)).tolist() == ends


def test_each_part_is_decoded_alone_and_its_end_is_counted_in_characters() -> None:
    tokens = np.array([ord(one) for one in "añ42b"], dtype=np.int32)
    mask = np.array([True, True, False, False, True])
    assert part_texts(tokens, mask, letters) == ["añ", "42", "b"]
    assert text_and_ends(tokens, mask, letters) == ("añ42b", [2, 4, 5])
    assert text_and_ends(tokens, None, letters) == ("añ42b", None)
    assert split_text("añ42b", [2, 4, 5]) == ["añ", "42", "b"]


@pytest.mark.parametrize(
    ("ends", "parts"),
    [
        ([], ["abcd"]),
        ([9], ["abcd"]),
        ([2], ["abcd"]),  # the last part has what is left
        ([1, 99, 4], ["a", "bcd", ""]),
        ([3, 1, 4], ["abc", "", "d"]),
        ([-7, None, 2, 4], ["", "", "ab", "cd"]),
    ],
)
def test_ends_that_cannot_be_lose_no_text(ends: list[int | None], parts: list[str]) -> None:
    assert split_text("abcd", ends) == parts
    assert "".join(parts) == "abcd"


ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "3"}}\n</tool_call>'
ADDED = ToolCall("add", '{"a": 2, "b": "3"}')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is 5.", ("It is 5.",)),
        (f"First:\n{ADD}", ("First:\n", ADDED)),
        (f"{ADD}\n{ADD} then", (ADDED, ADDED, " then")),
        ('{"name": "add", "parameters": {"a": 2, "b": "3"}}', (ADDED,)),
        ('{"name": "add"}', ('{"name": "add"}',)),
        (f"<think>{ADD}</think>{ADD}", (f"<think>{ADD}</think>", ADDED)),
        (f"<think>{ADD}", (f"<think>{ADD}",)),
        (f"{ADD[:-12]} {ADD}", (ADDED, ADDED)),
        (f"{ADD} {ADD[:-12]}", (ADDED, ADDED)),
        ('</think>[{"name": "add", "parameters": {"a": 2, "b": "3"}}]', ("</think>", ADDED)),
        ("<tool_call>{not JSON}</tool_call>", ("<tool_call>{not JSON}</tool_call>",)),
        (f"<tool_call>{{</tool_call>{ADD}", ("<tool_call>{</tool_call>", ADDED)),
        ("<tool_call>" + "{" * 100_000 + "</tool_call>", None),
        ("<tool_call>" * 20_000, None),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', None),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 9999 + "}}</tool_call>", None),
        ('<tool_call>{"name": "add", "arguments": ' + '{"a":' * 50_000 + "}" * 50_000 + "}</tool_call>", None),
        ("<tool_call>[]</tool_call>", None),
        ("", ()),
        (" \n", ()),
    ],
)
def test_calls_are_told_from_text_and_what_is_none_stays_text(
    text: str, said: tuple[str | ToolCall, ...] | None
) -> None:
    assert turns_of([text]) == [Turn((text,) if said is None else said)]


@pytest.mark.parametrize(
    ("text", "before", "answers", "after"),
    [
        # what a template writes around an answer, its special tokens left out
        ("\nuser\n<tool_response>\n42\n</tool_response>\nassistant\n", "\nuser\n", ("42",), "assistant\n"),
        (
            "\nuser\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>\nassistant\n<think>\n",
            "\nuser\n",
            ("a", "b"),
            "assistant\n<think>\n",
        ),
        ("ipython\n\n42assistant\n\n", "ipython\n", ("42",), "assistant\n\n"),
        ("\nuser\nhigher\nmodel\n", "\nuser\n", ("higher",), "model\n"),
        ("\nuser\n\nassistant\n", "\nuser\n", ("",), "assistant\n"),
        ("higher\n", "", ("higher",), ""),  # without a template
        ("ask the assistant", "", ("ask the assistant",), ""),
        ("user\nhas no name after it", "", ("user\nhas no name after it",), ""),
        ("<tool_response>\n42", "", ("<tool_response>\n42",), ""),
        ("\nuser\n<tool_response>1</tool_response> and\nassistant\n", "\nuser\n", None, "assistant\n"),
        ("\n", "", ("",), ""),
        ("", "", (), ""),
    ],
)
def test_an_answer_is_told_from_the_marks_around_it(
    text: str, before: str, answers: tuple[str, ...] | None, after: str
) -> None:
    answers = ("<tool_response>1</tool_response> and",) if answers is None else answers
    assert turns_of(["go", text, "on"]) == [Turn(("go",), before, answers, after), Turn(("on",))]


def test_arguments_are_read_as_a_person_would_write_them() -> None:
    call = ToolCall("add", r'{"a": 2, "b": "caf\u00e9\n", "c": ["\u00e9", null]}')
    assert arguments_of(call) == {"a": "2", "b": "café\n", "c": '["é", null]'}
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert arguments_of(ToolCall("add", deep)) == {"arguments": deep}


def test_an_episode_that_its_environment_began_has_a_first_turn_without_text() -> None:
    assert turns_of(["", "Guess!", "7"]) == [Turn((), "", ("Guess!",)), Turn(("7",))]


def test_an_episode_is_told_line_by_line() -> None:
    parts = [f"First:\n{ADD}", "\nuser\n<tool_response>\n5\n</tool_response>\nassistant\n", "5"]
    assert list(lines_of(parts)) == [
        ("turn", "1"),
        ("says", "First:"),
        ("calls", "add\n  a: 2\n  b: 3"),
        ("answer", "5"),
        ("turn", "2"),
        ("says", "5"),
    ]
