"""A stored episode as chat messages, for reward functions that are given those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlep.core.transcript import parts_of
from rlep.core.types import Trajectory


def conversation(
    tokenizer: Any, prompt: list[int], member: Trajectory, tools: Sequence[Callable[..., Any]]
) -> list[dict[str, Any]]:
    """Turns of the policy as TRL reads them, and between them what tools or an environment wrote.

    What stands between two turns is one message of the role ``tool``, the chat template's own text in it: tokens do not tell
    where that ends.

    Args:
        tokenizer: of transformers, with a ``response_template`` or a ``response_schema``.
        prompt: token ids before the episode.
        member: a response; without a mask it is one turn.
        tools: of the trainer; their schemas give arguments of calls their types.
    """
    from trl.chat_template_utils import parse_response

    tokens = member.tokens.tolist()
    sampled = np.ones(len(tokens), dtype=bool) if member.sampled is None else member.sampled
    messages: list[dict[str, Any]] = []
    for begin, end in pairwise([0, *parts_of(sampled).tolist()]):
        if not (ids := tokens[begin:end]):
            continue  # its environment began
        if sampled[begin]:
            messages.append(parse_response(tokenizer, ids, prefix=prompt + tokens[:begin], tools=[*tools]))
            continue
        calls = messages[-1].get("tool_calls") if messages else None
        name = {"name": calls[0]["function"]["name"]} if calls else {}
        messages.append({"role": "tool", **name, "content": tokenizer.decode(ids, skip_special_tokens=True)})
    return messages
