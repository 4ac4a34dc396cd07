"""Tokenizers and templates built like those of today's thinking models: what a response is graded by, and what a prompt is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from rlep.config.schema import ModelConfig
from rlep.core.errors import ModelError
from rlep.core.types import Message
from rlep.engines.families import check_family
from rlep.engines.tokenizer import Tokenizer, context_length, load_tokenizer
from rlep.plan.model_shape import read_shape
from rlep.services.verifier.answers import answer_of

USER = Message("user", "2 + 2?")
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = TURN + ASSISTANT
R1 = TURN + ASSISTANT.replace("assistant\n", "assistant\n<think>\n")
OFF = TURN + ASSISTANT.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")


def write(
    directory: Path, template: object = CHATML, *, special: bool = True, appends: bool = False, turns: bool = False
) -> Path:
    """A byte-level tokenizer; ``special``: as Phi-4 marks its think tokens, else as Qwen3. ``appends``: an EOS after each text.

    ``turns``: the EOS is ``<|im_end|>``.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    eos = "<|im_end|>" if turns else "<|endoftext|>"
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    for mark in ("<think>", "</think>"):
        (backend.add_special_tokens if special else backend.add_tokens)([AddedToken(mark, special=special)])
    if appends:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {eos}", special_tokens=[(eos, backend.token_to_id(eos))]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, chat_template=template, clean_up_tokenization_spaces=False
    )
    directory.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(directory)
    return directory


def untemplated(path: Path) -> Tokenizer:
    """The tokenizer of a directory for prompts without template."""
    return load_tokenizer(path, ModelConfig(chat_template=False))


def response(tokenizer: Tokenizer, text: str) -> str:
    """The text of a response as it is graded, from its tokens."""
    return tokenizer.decode(tokenizer.encode_response(text))


@pytest.mark.parametrize("special", [True, False])
def test_marks_of_thinking_stay_in_the_text_whether_or_not_they_are_special(special: bool, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, special=special))
    assert tokenizer.thinking == (("<think>", "</think>") if special else ())
    assert response(tokenizer, r"<think>try \boxed{7}, no, wait") == r"<think>try \boxed{7}, no, wait"
    assert response(tokenizer, "<think>7</think>\n<|im_start|>It is 8") == "<think>7</think>\nIt is 8"
    assert answer_of(response(tokenizer, r"<think>try \boxed{7}, no, wait"), truncated=False) is None
    assert answer_of(response(tokenizer, r"<think>\boxed{8}?</think> \boxed{7}"), truncated=False) == "7"


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(("template", "mark"), [(CHATML, ""), (R1, "<think>"), (OFF, "")])
def test_a_box_in_thinking_that_the_prompt_opened_is_no_answer(
    template: str, mark: str, special: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write(tmp_path, template, special=special))
    opening = tokenizer.opening(tokenizer.encode_prompt([USER]), USER.content)
    assert opening == mark
    for text, answer in ((r"1 and 2, \boxed{3}? hmm wait", None if mark else "3"), (r"hm</think>\boxed{3}", "3")):
        assert answer_of(opening + response(tokenizer, text), truncated=False) == answer


def test_an_eos_that_the_tokenizer_appends_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    tokenizer, plain = untemplated(write(tmp_path, appends=True)), untemplated(write(tmp_path / "plain"))
    ids = tokenizer.encode_prompt([USER])
    assert tokenizer.eos_id not in ids
    assert ids.tolist() == plain.encode_prompt([USER]).tolist()
    assert len(ids) == len("2 + 2?")
    assert (tokenizer.appends_eos, plain.appends_eos) == (True, False)
    assert not load_tokenizer(tmp_path).appends_eos  # a template is encoded as it stands


def test_a_template_that_ends_in_the_eos_is_refused(tmp_path: Path) -> None:
    ending = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = load_tokenizer(write(tmp_path, ending, turns=True))
    with pytest.raises(ModelError, match=r"ends a prompt with the EOS <\|im_end\|>.* add_generation_prompt"):
        tokenizer.encode_prompt([USER])
    other = load_tokenizer(write(tmp_path / "chatml", turns=True))
    assert other.decode(other.encode_prompt([USER])) == "user\n2 + 2?\nassistant\n"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content.index('x') }}", "ValueError"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ oops", "unexpected end of template"),
    ],
)
def test_a_template_that_fails_is_one_sentence(template: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"the chat template (fails with|refuses) a prompt: .*{fault}"):
        load_tokenizer(write(tmp_path, template)).encode_prompt([USER])


def test_of_several_templates_the_default_is_taken_and_without_one_all_are_named(tmp_path: Path) -> None:
    both = load_tokenizer(write(tmp_path / "both", {"default": R1, "tool_use": CHATML}))
    assert both.opening(both.encode_prompt([USER]), USER.content) == "<think>"
    none = load_tokenizer(write(tmp_path / "none", {"tool_use": CHATML, "rag": CHATML}))
    with pytest.raises(ModelError, match=r"has the chat templates rag, tool_use and none is named default"):
        none.encode_prompt([USER])
    assert len(untemplated(tmp_path / "none").encode_prompt([USER])) == len("2 + 2?")


def test_another_template_is_another_digest_and_a_tokenizer_saved_anew_keeps_it(tmp_path: Path) -> None:
    digests = [
        load_tokenizer(write(tmp_path / name, template, **more)).template_digest
        for name, template, more in (
            ("first", CHATML, {}),
            ("thinks", R1, {}),
            ("many", {"default": CHATML, "rag": R1}, {}),  # the default is the same
            ("turns", CHATML, {"turns": True}),  # a template may write the EOS
        )
    ]
    assert [digests.index(digest) for digest in digests] == [0, 1, 0, 3]
    PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "first")).save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").template_digest == digests[0]


def test_without_a_template_what_stands_around_a_text_counts(tmp_path: Path) -> None:
    plain, appends = untemplated(write(tmp_path / "a")), untemplated(write(tmp_path / "b", R1, appends=True))
    assert plain.template_digest != appends.template_digest
    assert plain.template_digest == untemplated(write(tmp_path / "c", R1)).template_digest


def test_a_template_with_todays_date_is_known(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %B %Y') }}" + CHATML  # as Llama 3.2 and SmolLM3
    assert load_tokenizer(write(tmp_path / "dated", dated)).dated
    assert not load_tokenizer(write(tmp_path / "plain")).dated


def test_files_nested_without_end_are_one_sentence(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("tokenizer_config.json", "config.json"):
        (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(ModelError, match="the tokenizer cannot be read"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json cannot be read: RecursionError"):
        context_length(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json cannot be read: RecursionError"):
        read_shape(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json cannot be read: RecursionError"):
        check_family(tmp_path, 4096)


def test_text_without_special_marks_is_decoded_as_before(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, special=False))
    backend = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    ids = np.random.default_rng(0).integers(0, len(backend), (50, 30)).astype(np.int32)
    expected = [backend.decode(row.tolist(), skip_special_tokens=True) for row in ids]
    assert [tokenizer.decode(row) for row in ids] == expected
