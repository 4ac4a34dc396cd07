"""A model built like Qwen3: its prompts with and without thinking, with a template of one's own, and what names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from rlep.config.schema import ModelConfig
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, ModelError
from rlep.core.types import Message
from rlep.engines.families import check_family
from rlep.engines.tokenizer import Tokenizer, context_length, load_tokenizer, vocabulary_size
from rlep.plan.model_shape import read_shape
from tests.engines.test_thinking_tokens import CHATML
from tests.qwen3 import write_qwen3, write_tokenizer

QUESTION = Message("user", "2 + 2?")
ASKED = "user\n2 + 2?\nassistant\n"  # the marks of turns are special tokens, which decoding leaves out
SILENT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("qwen3")
    write_tokenizer(directory)
    return directory


def tokenizer_of(model: Path, template: dict[str, JsonValue] | None = None, **more: object) -> Tokenizer:
    return load_tokenizer(model, ModelConfig.model_validate({"template": template or {}, **more}))


def prompt(tokenizer: Tokenizer, *messages: Message) -> str:
    return tokenizer.decode(tokenizer.encode_prompt(messages))


@pytest.mark.parametrize(
    ("template", "ending"),
    [({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, SILENT)],
    ids=str,
)
def test_thinking_is_switched_off_by_a_variable_of_the_template(
    model: Path, template: dict[str, JsonValue], ending: str
) -> None:
    tokenizer = tokenizer_of(model, template)
    assert prompt(tokenizer, QUESTION) == ASKED + ending
    assert tokenizer.opening(tokenizer.encode_prompt([QUESTION]), QUESTION.content) == ""
    assert tokenizer.encode_prompt([QUESTION])[0] != tokenizer.eos_id


def test_thinking_of_earlier_turns_is_not_shown(model: Path) -> None:
    turns = (QUESTION, Message("assistant", "<think>5? no</think>\n\n4"), Message("user", "Sure?"))
    assert prompt(tokenizer_of(model), *turns) == "user\n2 + 2?\nassistant\n4\nuser\nSure?\nassistant\n"


def test_each_part_of_a_prompt_is_in_the_digest(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(CHATML)
    settings: list[dict[str, object]] = [
        {},
        {"template": {"enable_thinking": True}},  # the same prompts, but not for every template
        {"template": {"enable_thinking": False}},
        {"system_prompt": "Box the answer."},
        {"template_file": own},
        {"chat_template": False},
    ]
    digests = [load_tokenizer(model, ModelConfig.model_validate(some)).template_digest for some in settings]
    assert len({*digests}) == 6
    assert load_tokenizer(model).template_digest == digests[0]
    own.write_text(CHATML + " ")
    assert tokenizer_of(model, template_file=own).template_digest not in digests


def test_a_file_takes_the_place_of_the_tokenizers_template(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("Q: {{ messages[-1].content }} ({{ tone }}) A:")
    assert prompt(tokenizer_of(model, {"tone": "kurz"}, template_file=own), QUESTION) == "Q: 2 + 2? (kurz) A:"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"^model\.template_file = .*own\.jinja cannot be read: .*No such file"),
        ("{{ 1 // 0 }}", r"^.*own\.jinja: the chat template fails with a prompt: ZeroDivisionError"),
        ("{{ raise_exception('no tools') }}", r"^.*own\.jinja: the chat template refuses a prompt: no tools$"),
        ("{% for m in messages %}", r"^.*own\.jinja: the chat template refuses a prompt: Unexpected end of template"),
    ],
)
def test_a_file_that_is_not_there_or_fails_is_one_sentence(
    model: Path, tmp_path: Path, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "own.jinja").write_text(text)
    with pytest.raises(ModelError, match=sentence) as caught:
        tokenizer_of(model, template_file=tmp_path / "own.jinja").encode_prompt([QUESTION])
    assert "\n" not in str(caught.value)


def test_a_variable_that_the_template_does_not_read_is_refused(model: Path) -> None:
    with pytest.raises(ModelError, match=r"^model\.template\.enable_thinkin: .*reads no variable of this name"):
        tokenizer_of(model, {"enable_thinkin": False}).encode_prompt([QUESTION])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.template.messages=[]"], r"^model\.template\.messages: rlep gives it to the chat template itself"),
        (
            ["model.template.enable_thinking=false", "model.chat_template=false"],
            r"^model\.template = \{ enable_thinking = false \} needs model\.chat_template",
        ),
        (["model.template=off"], r"^model\.template = 'off': must be a table of names and values"),
    ],
)
def test_a_variable_that_can_do_nothing_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config([], overrides)


def test_the_switch_is_set_on_the_command_line_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[model]\ntemplate = { enable_thinking = false, effort = 'low' }\n")
    assert load_config([file], ["model.template.effort=high"]).model.template == {
        "enable_thinking": False,
        "effort": "high",
    }


def test_the_model_is_one_that_rlep_trains(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = write_qwen3(tmp_path)
    check_family(model, 4096)
    shape = read_shape(model)
    loaded = AutoModelForCausalLM.from_pretrained(str(model))
    rows = vocabulary_size(model)
    assert rows == 256 + 3 + 2  # bytes, special tokens, marks of thinking
    # q, k and v, o, head norms, MLP, two norms
    layer = 32 * 128 + 2 * 32 * 64 + 128 * 32 + 2 * 32 + 3 * 32 * 64 + 2 * 32
    assert sum(part.numel() for part in loaded.parameters()) == rows * 32 + 2 * layer + 32 == shape.parameters
    assert context_length(model) == 256
    turn, text = loaded.generation_config.eos_token_id
    assert (turn, text) == (load_tokenizer(model).eos_id, 256)  # <|endoftext|> is the first special token
    assert torch.equal(loaded.lm_head.weight, loaded.get_input_embeddings().weight)
