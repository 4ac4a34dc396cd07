"""A stored episode as chat messages, for reward functions that are given those."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rlep.core.transcript import parts_of
from rlep.core.types import Trajectory


def conversation(tokenizer: Any, prompt: list[int], member: Trajectory) -> list[dict[str, Any]]:
    """Turns of the policy as ``tokenizer.parse_response`` reads them, and between them what tools or an environment wrote.

    What stands between two turns is one message of the role ``tool``, the chat template's own text in it: tokens do not tell
    where that ends.

    Args:
        tokenizer: of transformers, with a ``response_template`` or a ``response_schema``.
        prompt: token ids before the episode.
        member: a response; without a mask it is one turn.
    """
    tokens = member.tokens.tolist()
    sampled = np.ones(len(tokens), dtype=bool) if member.sampled is None else member.sampled
    messages: list[dict[str, Any]] = []
    for begin, end in pairwise([0, *parts_of(sampled).tolist()]):
        if not (ids := tokens[begin:end]):
            continue  # its environment began
        if sampled[begin]:
            messages.append(_turn(tokenizer, ids, prompt + tokens[:begin]))
            continue
        calls = messages[-1].get("tool_calls") if messages else None
        name = {"name": calls[0]["function"]["name"]} if calls else {}
        messages.append({"role": "tool", **name, "content": tokenizer.decode(ids, skip_special_tokens=True)})
    return messages


def _turn(tokenizer: Any, ids: list[int], before: list[int]) -> dict[str, Any]:
    """A turn's message; where it cannot be read, its text."""
    newer = getattr(tokenizer, "response_template", None) is not None
    try:
        parsed = tokenizer.parse_response(ids, **({"prefix": before} if newer else {}))
    except (ValueError, TypeError):
        parsed = None
    if not isinstance(parsed, dict):
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
    text = str(parsed.get("content") or "").removesuffix(tokenizer.eos_token)
    return {"role": "assistant"} | parsed | {"content": text}
