"""A model directory's tokenizer: chat messages to ids, ids to text, and a digest that names it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlep.config.schema import ModelConfig
from rlep.core.errors import ModelError
from rlep.core.model_config import read_config
from rlep.core.thinking import MARK, opened
from rlep.core.tool_calls import CALL_MARKS
from rlep.core.types import Int32Array, Message
from rlep.core.versions import check_installed
from rlep.core.waiting import TooLate, raising_after

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""A model directory without any of these has no tokenizer."""
TEMPLATE_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
"""Errors that a chat template raises beside jinja2's own errors: its expressions are Python's."""
CALL_ID = "rlepcall0"
"""Name of a rendered call: nine letters and digits, as Mistral's templates want it."""
LONGEST_TEMPLATE = 1 << 20
"""Bytes of ``model.template_file``."""
RENDER_S = 20.0
"""Longest rendering of one conversation, which takes milliseconds: a template may loop for years."""
SPLIT_SAMPLE = "Ann has 8 bags of 7 pens.\n\n  How many?  \\boxed{x^2 + 1.5} \u221a2 \u65e0\u89e3 cafe\u0301"
"""Text whose tokens tell one way of splitting from another: numbers, white space, LaTeX, other scripts, a combining mark."""


class Tokenizer:
    """The tokenizer of one model directory, and how ``[model]`` makes a prompt of a question; made by ``load_tokenizer``."""

    def __init__(self, backend: Any, model: ModelConfig, tools: Sequence[Mapping[str, object]] = ()) -> None:
        """``tools``: JSON schemas that the chat template writes into prompts, as ``Environments.tools`` has them."""
        self._backend, self._model, self.tools = backend, model, tuple(tools)

    def with_tools(self, tools: Sequence[Mapping[str, object]]) -> Tokenizer:
        """The same tokenizer, whose prompts offer these tools."""
        return Tokenizer(self._backend, self._model, tools)

    @property
    def backend(self) -> Any:
        """The tokenizer as transformers has it, for vLLM to find stop texts with."""
        return self._backend

    @property
    def eos_id(self) -> int:
        """The id of the token that ends a response."""
        return int(self._backend.eos_token_id)

    @property
    def unknown_id(self) -> int | None:
        """The id that stands for text that the vocabulary lacks; None where every text has ids of its own (byte-level BPE)."""
        unknown = self._backend.unk_token_id
        return None if unknown is None or unknown == self.eos_id else int(unknown)

    @cached_property
    def thinking(self) -> tuple[str, ...]:
        """Special tokens that are marks of thinking, e.g. ``<think>``, in the order of their ids: ``decode`` keeps them."""
        return tuple(token for _, token in sorted(self.special.items()) if MARK.fullmatch(token))

    @property
    def templated(self) -> bool:
        """Tell whether a chat template makes the prompts."""
        return self._model.chat_template

    @cached_property
    def special(self) -> dict[int, str]:
        """Special tokens by id, marks of thinking among them."""
        added = {index: str(token) for index, token in self._backend.added_tokens_decoder.items() if token.special}
        return added | dict(zip(self._backend.all_special_ids, self._backend.all_special_tokens, strict=True))

    @cached_property
    def _left_out(self) -> frozenset[int]:
        """Ids that ``decode`` leaves out."""
        kept = {*self.thinking, *CALL_MARKS}
        return frozenset(index for index, token in self.special.items() if token not in kept)

    @cached_property
    def digest(self) -> str:
        """Hash (32 hex digits) of what each token id stands for, and of the EOS.

        Taken over the vocabulary, not over files: a checkpoint's tokenizer, saved again, keeps its digest.
        """
        digest = hashlib.blake2b(digest_size=16, person=b"rlep.tokenizer")
        for token, index in sorted(self._backend.get_vocab().items(), key=lambda item: (item[1], item[0])):
            encoded = token.encode()
            digest.update(f"{index}:{len(encoded)}:".encode() + encoded)
        digest.update(f"eos:{self.eos_id}".encode())
        return digest.hexdigest()

    @cached_property
    def template_digest(self) -> str:
        """Hash (32 hex digits) of what makes a prompt of a question beside the vocabulary.

        That is the template and its variables, the tokens it may name, the system message, the tools, how a text is split, and,
        without a template, what is put around it.
        """
        backend, model = self._backend, self._model
        names = (backend.bos_token, backend.eos_token, backend.pad_token, backend.unk_token)
        split = backend.encode(SPLIT_SAMPLE, add_special_tokens=not model.chat_template)
        parts = (self.chat_template if model.chat_template else None, names, split, model.system_prompt, model.template)
        tools = (self.tools,) if self.tools and model.chat_template else ()
        encoded = json.dumps((*parts, *tools), sort_keys=True).encode()
        return hashlib.blake2b(encoded, digest_size=16, person=b"rlep.template").hexdigest()

    @property
    def dated(self) -> bool:
        """Tell whether the chat template writes the present date or time into prompts, so that they differ from day to day."""
        return self._model.chat_template and "strftime_now" in self.chat_template

    @property
    def appends_eos(self) -> bool:
        """Tell whether the tokenizer ends texts in an EOS, which a prompt without template is given without."""
        return not self._model.chat_template and bool(self._backend.encode(SPLIT_SAMPLE)[-1] == self.eos_id)

    def encode_prompt(self, messages: Sequence[Message]) -> Int32Array:
        """Token ids the model is shown, ready to be continued by its response, ``[prompt_length]``.

        By ``[model]``: the chat template renders the question, after ``system_prompt`` where it has no system message of its
        own; without a template the contents are joined by blank lines.

        Raises:
            ModelError: the template is asked for and there is none, or it fails with these messages, or it ends them with the
                EOS.
        """
        if self._model.chat_template:
            ids = self._backend.encode(self.render(messages), add_special_tokens=False)
            if ids and ids[-1] == self.eos_id:
                raise ModelError(
                    f"{self._name}: the chat template ends a prompt with the EOS {self._backend.eos_token}, after which the "
                    "model has nothing to say: have it begin the response where add_generation_prompt is true"
                )
        else:
            ids = self._backend.encode("\n\n".join(message.content for message in messages))
            while len(ids) > 1 and ids[-1] == self.eos_id:  # which some tokenizers put at the end of every text
                ids.pop()
        return np.asarray(ids, dtype=np.int32)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text, the special tokens that it writes among them, and none put around it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False)
        return ids

    def encode_response(self, text: str) -> Int32Array:
        """Token ids of a whole response given as text, ``[T]``: the EOS is put at its end where the text has none.

        Sampling may have chosen other tokens for the same text; the text does not tell which.
        """
        ids = self._backend.encode(text, add_special_tokens=False)
        return np.asarray(ids if ids and ids[-1] == self.eos_id else [*ids, self.eos_id], dtype=np.int32)

    def decode(self, tokens: Int32Array) -> str:
        """The text of response tokens ``[T]``, special tokens left out but for marks of thinking and calls, spaces kept."""
        ids = tokens.tolist()
        skips = len(self._left_out) == len(self.special)
        if not skips:
            ids = [token for token in ids if token not in self._left_out]
        return str(self._backend.decode(ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False))

    def writes(self, text: str) -> bool:
        """Tell whether there are tokens that make this text, special tokens and white space around it aside."""
        ids = self._backend.encode(text, add_special_tokens=False)
        made = self._backend.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return bool(ids) and text.strip() in made

    def opening(self, prompt: Int32Array, question: str) -> str:
        """The mark with which a prompt's tokens open the response's thinking after ``question``; see ``thinking.opened``."""
        return opened(self.decode(prompt), question)

    @property
    def template_name(self) -> str:
        """The model or file that the chat template is of, for errors."""
        return str(self._model.template_file or self._model.path)

    @property
    def _name(self) -> str:
        return str(self._model.path)

    @cached_property
    def chat_template(self) -> str:
        """The chat template of a prompt. Raises ``ModelError`` where there is none, or a variable that it does not read."""
        file = self._model.template_file
        try:
            template = self._own_template() if file is None else _read_template(file)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ModelError(f"model.template_file = {file} cannot be read: {why}") from error
        for name in self._model.template:
            if not reads_variable(template, name):
                raise ModelError(
                    f"model.template.{name}: {file or self._name}: the chat template reads no variable of this name; leave it "
                    "out, or see what the template calls it"
                )
        return template

    def _own_template(self) -> str:
        template = self._backend.chat_template
        if isinstance(template, dict):
            if "default" not in template:
                raise ModelError(
                    f"{self._name}: the tokenizer has the chat templates {', '.join(sorted(template))} and none is named "
                    "default: name one so, give one as model.template_file, or turn the chat template off "
                    "(model.chat_template = false)"
                )
            template = template["default"]
        if template is None:
            raise ModelError(
                f"{self._name}: the tokenizer has no chat template; turn the chat template off "
                "(model.chat_template = false), or give one as model.template_file"
            )
        return str(template)

    def render(self, messages: Sequence[Message], *, begins_response: bool = True) -> str:
        """The conversation as the chat template writes it, after ``system_prompt`` where it has no system message of its own.

        ``begins_response``: what begins a response is put at its end. Raises ``ModelError`` where the template fails.
        """
        return self._rendered([_said(message) for message in messages], begins_response=begins_response)

    def render_call(self, question: str, name: str, arguments: Mapping[str, Any] | str) -> str:
        """A question and the call of a tool that answers it, as the chat template writes them; see ``render``.

        ``arguments``: as templates of most models take them, or their JSON, as others do.
        """
        function = {"name": name, "arguments": arguments}
        call = {"type": "function", "id": CALL_ID, "function": function}
        asked = _said(Message("user", question))
        return self._rendered(
            [asked, {"role": "assistant", "content": "", "tool_calls": [call]}], begins_response=False
        )

    def _rendered(self, conversation: Sequence[Mapping[str, Any]], *, begins_response: bool) -> str:
        from jinja2 import TemplateError

        system = self._model.system_prompt
        if system is not None and (not conversation or conversation[0]["role"] != "system"):
            conversation = (_said(Message("system", system)), *conversation)
        name, template = self.template_name, self.chat_template
        try:
            with raising_after(RENDER_S):
                return str(
                    self._backend.apply_chat_template(
                        list(conversation),
                        chat_template=template,
                        tools=list(self.tools) or None,
                        tokenize=False,
                        add_generation_prompt=begins_response,
                        **self._model.template,
                    )
                )
        except TooLate:
            raise ModelError(
                f"{name}: the chat template has not written a prompt in {RENDER_S:g} s: it loops, or is none"
            ) from None
        except TemplateError as error:
            raise ModelError(f"{name}: the chat template refuses a prompt: {error}") from error
        except TEMPLATE_FAULTS as error:
            raise ModelError(f"{name}: the chat template fails with a prompt: {error!r}") from error


def _said(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def _read_template(file: Path) -> str:
    """Read a template file. Raises ``ModelError`` for one that is too long, or that would write the same for every prompt."""
    with file.open("rb") as opened:
        if not file.is_file() or len(raw := opened.read(LONGEST_TEMPLATE + 1)) > LONGEST_TEMPLATE:
            raise ModelError(f"model.template_file = {file} is no file of at most {LONGEST_TEMPLATE} bytes")
    text = raw.decode()
    if "{{" not in text and "{%" not in text:
        raise ModelError(
            f"model.template_file = {file} is no chat template: nothing in it stands in {{{{ }}}} or {{% %}}"
        )
    return text


def reads_variable(template: str, name: str) -> bool:
    """Tell whether a chat template names a variable; whether it then does anything with it, only rendering could tell."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def load_tokenizer(model_dir: Path, model: ModelConfig | None = None) -> Tokenizer:
    """The tokenizer of a local model directory; nothing is downloaded and no code of the directory is run.

    ``model``: the section ``[model]``, which says how prompts are made, and by which name errors call the model; without it,
    by the chat template as it is, and the directory.

    A ``tokenizer.json`` is used as it stands. ``AutoTokenizer`` would replace the file's splitting rules by those of the
    model type: with a ``qwen2`` config it silently turns any other tokenizer's text into wrong ids.

    Raises:
        ModelError: no such directory, no tokenizer in it, one that cannot be read, or one without EOS.
        WrongVersionError: transformers is not installed.
    """
    _check_directory(model_dir)
    model = model or ModelConfig(path=model_dir)
    if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(f"{model.path}: no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")
    check_installed("transformers")
    try:
        backend = _loader(model_dir).from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise ModelError(f"{model.path}: the tokenizer cannot be read: {error}") from error
    if backend.eos_token_id is None:
        raise ModelError(f"{model.path}: the tokenizer names no EOS token, so no response could end")
    return Tokenizer(backend, model)


def _loader(model_dir: Path) -> Any:
    if (model_dir / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # imports torch, which takes seconds

    return AutoTokenizer


def context_length(model_dir: Path) -> int:
    """The longest sequence, prompt and response together, that the model's config allows, in tokens.

    Raises:
        ModelError: no such directory, or no readable ``config.json`` that states it.
    """
    _check_directory(model_dir)
    length = read_config(model_dir).get("max_position_embeddings")
    if not isinstance(length, int):
        raise ModelError(f"{model_dir / 'config.json'}: max_position_embeddings = {length!r}, a number is needed")
    return length


def vocabulary_size(model_dir: Path) -> int | None:
    """Rows of the model's embedding: every token id is below this. None where there is no ``config.json`` that states it."""
    try:
        rows = read_config(model_dir).get("vocab_size")
    except ModelError:
        return None
    return rows if isinstance(rows, int) else None


def _check_directory(model_dir: Path) -> None:
    if not model_dir.is_dir():
        raise ModelError(
            f"{model_dir}: no such model directory, nor a name of the form ORG/NAME of the Hugging Face hub"
        )
