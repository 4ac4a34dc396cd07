"""Marks around a model's thinking, as models of today write them."""

from __future__ import annotations

import re

_NAMED = r"(?:(?:seed:|longcat_)?think(?:ing)?|thought|reasoning)[>\]▷]"
OPENS, CLOSES = rf"(?:[<\[◁]{_NAMED}|<\|START_THINKING\|>)", rf"(?:[<\[◁]/{_NAMED}|<\|END_THINKING\|>)"
"""Patterns of the two marks."""
MARK = re.compile(
    rf"(?:[<\[◁](?=/?{_NAMED})|<\|(?=(?:START|END)_THINKING\|>))(/|END)?\w*(?::\w+)?(?:[>\]▷]|\|>)", re.IGNORECASE
)
"""``<think>`` (Qwen3, DeepSeek-R1, Phi-4), ``[THINK]`` (Magistral), ``<seed:think>`` (Seed-OSS), ``◁think▷`` (Kimi),
``<thinking>``, ``<longcat_think>``, ``<thought>``, ``<reasoning>`` or ``<|START_THINKING|>`` (Command A); group 1 marks the
end of a block."""


def opened(prompt: str, question: str = "") -> str:
    """The mark that opens the thinking which a response to ``prompt`` continues; empty where the prompt opens none.

    It is the prompt's last mark, and stands after ``question`` or at the very end: a mark that the question only speaks
    of opens nothing. Worked example: ``opened("Q: 2 + 2?\\nA: <think>\\n")`` is ``"<think>"``.
    """
    marks = list(MARK.finditer(prompt))
    if not marks or marks[-1].group(1):
        return ""
    last, line = marks[-1], question.strip().rpartition("\n")[2]
    asked = prompt.rfind(line) + len(line) if line and line in prompt else len(prompt)
    return last.group() if last.start() >= asked or not prompt[last.end() :].strip() else ""
