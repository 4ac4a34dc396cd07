"""Which prompts open the thinking that the response continues."""

import pytest

from rlep.core.thinking import opened

ASKED = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("added", "mark"),
    [
        ("", ""),  # Qwen3, SmolLM3: the model itself opens it
        ("<think>\n", "<think>"),  # DeepSeek-R1, QwQ, Qwen3-Thinking
        ("<think>", "<think>"),  # OLMo 3 Think, GLM-Z1
        ("<think>\n\n</think>\n\n", ""),  # Qwen3 with thinking switched off
        ("<think></think>", ""),
        ("[THINK]", "[THINK]"),  # Magistral
        ("<seed:think>", "<seed:think>"),  # Seed-OSS
        ("<think>\nLet me solve this.\n", "<think>"),  # a template of one's own
    ],
)
def test_the_prompt_opens_thinking_where_its_last_mark_is_an_opening_one(added: str, mark: str) -> None:
    assert opened(ASKED + added, "2 + 2?") == mark


def test_a_question_that_only_speaks_of_the_mark_opens_nothing() -> None:
    question = "Reason within <think> tags, then answer.\n2 + 2?"
    assert opened(f"<|user|>{question}<|assistant|>", question) == ""
    assert opened(f"<|user|>{question}<|assistant|><think>\n", question) == "<think>"


def test_a_question_without_template_may_end_in_the_mark() -> None:
    assert opened("2 + 2?\n<think>\n", "2 + 2?\n<think>\n") == "<think>"
    assert opened("2 + 2?\n<think>\n") == "<think>"
    assert opened("<think> 2 + 2?", "<think> 2 + 2?") == ""
    assert opened("", "") == ""
