"""What is read and said of prompts, with tokenizers built like those of thinking models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.check.prompts_shown import prompt_notes, read_prompts
from rlep.config.settings import load_config
from rlep.core.errors import ModelError
from rlep.engines.tokenizer import load_tokenizer
from tests.engines.test_thinking_tokens import CHATML, R1, write
from tests.small import BASE


@pytest.mark.parametrize(
    ("template", "special", "opening", "notes"),
    [
        (CHATML, False, "", []),
        (
            R1,
            True,
            "<think>",
            [
                "special tokens of the tokenizer: <think>, </think>; verifier and reward function see them",
                "2 of 2 prompts end in <think>: graded text begins with it, so that a response which does not close it "
                "has no answer",
            ],
        ),
        (
            "{{ strftime_now('%d %B %Y') }}" + CHATML,
            False,
            "",
            ["the chat template writes today's date into prompts: a run continued on another day has other prompts"],
        ),
    ],
)
def test_each_prompt_knows_what_it_opens_and_the_user_is_told(
    template: str, special: bool, opening: str, notes: list[str], tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"question": "2 + 2?", "answer": "4"}, {"question": "Think in <think> tags: 2 + 3?", "answer": "5"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = load_tokenizer(write(tmp_path / "model", template, special=special))
    config = load_config([BASE], [f'model.path="{tmp_path / "model"}"', "data.max_prompt_tokens=200"])
    found = read_prompts(config, [data], tokenizer)
    assert [prompt.opening for prompt in found.prompts] == [opening] * 2
    assert prompt_notes(tokenizer, (found, None)) == notes


def test_a_template_that_fails_ends_the_reading_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "2 + 2?", "answer": "4"}))
    tokenizer = load_tokenizer(write(tmp_path / "model", "{{ messages[0].content + none }}"))
    with pytest.raises(ModelError, match="the chat template fails with a prompt: TypeError"):
        read_prompts(load_config([BASE], []), [tmp_path / "data.jsonl"], tokenizer)
