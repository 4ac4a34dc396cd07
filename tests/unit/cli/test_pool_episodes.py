"""An episode of a pool in a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from rlep.cli.pool.look import described
from rlep.core.types import Int32Array
from tests.unit.pool.test_codec import EXAMPLE

if TYPE_CHECKING:
    from rlep.engines.tokenizer import Tokenizer

PARTS = (
    'First:\n<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>',
    "\nuser\n<tool_response>\n42\n43\n</tool_response>\nassistant\n",
    "It is 42.",
)


class Letters:
    """A tokenizer whose ids are code points."""

    def decode(self, tokens: Int32Array) -> str:
        return "".join(map(chr, tokens))


def test_turns_are_marked_and_what_the_environment_wrote_stands_behind_a_bar() -> None:
    tokens = np.array([ord(one) for one in "".join(PARTS)], dtype=np.int32)
    mask = np.repeat([True, False, True], [len(part) for part in PARTS])
    text = described(replace(EXAMPLE, tokens=tokens, sampled=mask), cast("Tokenizer", Letters()))
    assert (
        f"\n  {len(tokens)} tokens, {len(tokens) - len(PARTS[1])} of the policy, correct, graded by math 2.1\n"
        in text.plain
    )
    told = ["turn 1", "First:", "calls add", "  a: 2", "│ 42", "│ 43", "turn 2", "It is 42."]
    assert text.plain.split("\n  ")[-len(told) :] == told
    dim = [text.plain[span.start : span.end] for span in text.spans if span.style == "dim"]
    assert dim == ["│ 42", "│ 43"]


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (None, ["token ids [151643, 0, 5, 5, 2]"]),
        (
            [True, True, False, True, True],
            ["turn 1", "token ids [151643, 0]", "│ token ids [5]", "turn 2", "token ids [5, 2]"],
        ),
    ],
)
def test_without_its_tokenizer_there_are_ids(mask: list[bool] | None, told: list[str]) -> None:
    one = replace(EXAMPLE, sampled=None if mask is None else np.array(mask))
    lines = described(one, None).plain.split("\n  ")
    assert lines[-len(told) - 1 :] == ["model.path has no or another tokenizer", *told]
