"""What is read and said of prompts, with tokenizers built like those of thinking models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.check.prompts_shown import prompt_notes, read_prompts
from rlep.config.schema import ModelConfig
from rlep.config.settings import load_config
from rlep.core.errors import ModelError
from rlep.engines.tokenizer import load_tokenizer
from tests.engines.test_thinking_tokens import CHATML, R1, write
from tests.qwen3 import write_tokenizer
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
    found = read_prompts(config, [data], tokenizer, training=True)
    assert [prompt.opening for prompt in found.prompts] == [opening] * 2
    assert prompt_notes(tokenizer, (found, None), None) == notes


def test_a_mark_that_the_prompt_closes_itself_is_not_to_be_asked_of_responses(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "2 + 2?", "answer": "4"}))
    write_tokenizer(tmp_path / "model")
    for template, notes in (("{}", 0), ("{ enable_thinking = false }", 1)):
        model = [f'model.path="{tmp_path / "model"}"', f"model.template={template}"]
        config = load_config([BASE], [*model, "data.max_prompt_tokens=200"])
        tokenizer = load_tokenizer(tmp_path / "model", config.model)
        found = read_prompts(config, [tmp_path / "data.jsonl"], tokenizer, training=True)
        assert prompt_notes(tokenizer, (found,), None) == []
        said = prompt_notes(tokenizer, (found,), "</think>")
        assert ["prompts end in </think>, and verifier.answer_after" in note for note in said] == [True] * notes


def test_what_the_tokenizer_appends_to_texts_is_told_where_prompts_are_texts(tmp_path: Path) -> None:
    write(tmp_path, appends=True, special=False)
    plain = load_tokenizer(tmp_path, ModelConfig(chat_template=False))
    assert prompt_notes(plain, (), None) == ["the tokenizer ends texts in its EOS: prompts are given without it"]
    assert prompt_notes(load_tokenizer(tmp_path), (), None) == []


def test_a_template_that_fails_ends_the_reading_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "2 + 2?", "answer": "4"}))
    tokenizer = load_tokenizer(write(tmp_path / "model", "{{ messages[0].content + none }}"))
    with pytest.raises(ModelError, match="the chat template fails with a prompt: TypeError"):
        read_prompts(load_config([BASE], []), [tmp_path / "data.jsonl"], tokenizer, training=True)
