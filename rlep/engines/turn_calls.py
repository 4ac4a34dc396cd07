"""Calls of tools in a policy's turn, read from its tokens, and a check that the model's own form of a call is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlep.core.episodes import ToolCall
from rlep.core.errors import ModelError
from rlep.core.thinking import MARK, opened
from rlep.core.tool_calls import answer_of, message_calls, read_tool_calls
from rlep.core.types import Int32Array, Message
from rlep.engines.tokenizer import TEMPLATE_FAULTS, Tokenizer

QUESTION, ANSWER = "rlep-question", "rlep-answer"
"""Texts that stand for others in renderings."""
SAMPLE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "Text to look for."},
                "code": {"type": "string", "description": "Code of a place."},
                "limit": {"type": "integer", "description": "Number of results."},
                "options": {"type": "object", "description": "Options by name."},
            },
            "required": ["text", "code", "limit", "options"],
        },
    },
}
SAMPLE_ARGUMENTS: Mapping[str, Any] = {
    "text": 'say "\u00e9"\n<b> & \u7b54',
    "code": "75001",
    "limit": 3,
    "options": {"near": [1, 2.5], "name": "a, b"},
}
SHOWN = 300
"""Characters of a rendered call that an error shows."""


def read_calls(tokenizer: Tokenizer, turn: Int32Array, prompt: str, opening: str) -> Sequence[ToolCall]:
    """The calls of tools in the policy's ``turn`` ``[n]``, in order; outside its thinking.

    Read by the tokenizer's ``response_template``, if it has one, else as ``read_tool_calls`` says. ``prompt``: what the turn
    continues. ``opening``: the mark of thinking that the prompt ends in.
    """
    backend, tools = tokenizer.backend, list(tokenizer.tools)
    if getattr(backend, "response_template", None) is None:
        return read_tool_calls(answer_of(tokenizer.decode(turn), opening), tools)
    try:
        parsed = backend.parse_response(turn.tolist(), prefix=prompt, tools=tools or None)
    except TEMPLATE_FAULTS as error:
        return [ToolCall("", "{}", f"the call of a tool cannot be read: {error}")]
    return message_calls(parsed) if isinstance(parsed, dict) else []


def check_calls_read(tokenizer: Tokenizer) -> None:
    """Raise ``ModelError`` where a call in the form of the chat template is not read as it was made.

    A template that writes no calls tells nothing of their form: it passes.
    """
    offering = tokenizer.with_tools([*tokenizer.tools, SAMPLE_TOOL])
    name = SAMPLE_TOOL["function"]["name"]
    rendered = _rendered(offering, name)
    silent, said = (
        offering.render([Message("user", QUESTION), Message("assistant", text)], begins_response=False)
        for text in ("", ANSWER)
    )
    if rendered == silent:
        return
    prompt = _prompt_of(offering, rendered)
    written = rendered[len(prompt) :].removesuffix(said.partition(ANSWER)[2])
    turn = np.asarray(offering.encode_text(written), dtype=np.int32)
    calls = read_calls(offering, turn, prompt, opened(prompt, QUESTION))
    if [(call.name, json.loads(call.arguments)) for call in calls] == [(name, dict(SAMPLE_ARGUMENTS))]:
        return
    raise ModelError(
        f"{tokenizer.template_name}: the chat template writes the call of a tool as {written.strip()[:SHOWN]!r}, which rlep "
        f"{_outcome(calls)}: calls in this form would not be carried out as the model makes them. Give the tokenizer a "
        "response_template of transformers that reads it, or take a model that calls tools in a form that docs/reference/"
        "environments.md lists"
    )


def _rendered(tokenizer: Tokenizer, name: str) -> str:
    try:
        return tokenizer.render_call(QUESTION, name, SAMPLE_ARGUMENTS)
    except ModelError:
        return tokenizer.render_call(QUESTION, name, json.dumps(SAMPLE_ARGUMENTS, ensure_ascii=False))


def _prompt_of(tokenizer: Tokenizer, rendered: str) -> str:
    """The beginning of ``rendered`` that is a prompt: as sampling has it, or without the thinking that it opens."""
    prompt = tokenizer.render([Message("user", QUESTION)])
    if rendered.startswith(prompt):
        return prompt
    begins = common_beginning(prompt, rendered)
    marks = [mark.start() for mark in MARK.finditer(prompt, prompt.rfind(QUESTION)) if mark.start() <= len(begins)]
    return begins[: marks[0]].rstrip() if marks else begins


def common_beginning(one: str, other: str) -> str:
    """Common beginning of two texts."""
    alike = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: min(len(one), len(other)) if alike is None else alike]


def _outcome(calls: Sequence[ToolCall]) -> str:
    if not calls:
        return "does not see as a call"
    first = calls[0]
    return f"cannot read ({first.fault})" if first.fault else f"reads as {first.name}({first.arguments:.{SHOWN}})"
