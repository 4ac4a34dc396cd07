"""A model directory's tokenizer: chat messages to ids, ids to text, and a digest that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlep.core.errors import ModelError
from rlep.core.types import Int32Array, Message

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""A model directory without any of these has no tokenizer."""


class Tokenizer:
    """The tokenizer of one model directory; made by ``load_tokenizer``."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

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

    def encode_prompt(
        self, messages: Sequence[Message], *, chat_template: bool = True, system: str | None = None
    ) -> Int32Array:
        """Token ids the model is shown, ready to be continued by its response, ``[prompt_length]``.

        Args:
            messages: the question.
            chat_template: apply the model's chat template; without it the contents are joined by blank lines.
            system: a system message put first, where the question has none of its own.

        Raises:
            ModelError: the template is asked for and the tokenizer has none, or it refuses these messages.
        """
        if system is not None and (not messages or messages[0].role != "system"):
            messages = (Message("system", system), *messages)
        if chat_template:
            ids = self._backend.encode(self._render(messages), add_special_tokens=False)
        else:
            ids = self._backend.encode("\n\n".join(message.content for message in messages))
        return np.asarray(ids, dtype=np.int32)

    def encode_response(self, text: str) -> Int32Array:
        """Token ids of a whole response given as text, ``[T]``: the EOS is put at its end where the text has none.

        Sampling may have chosen other tokens for the same text; the text does not tell which.
        """
        ids = self._backend.encode(text, add_special_tokens=False)
        return np.asarray(ids if ids and ids[-1] == self.eos_id else [*ids, self.eos_id], dtype=np.int32)

    def decode(self, tokens: Int32Array) -> str:
        """The text of response tokens ``[T]``, special tokens left out, spaces as they are."""
        return str(self._backend.decode(tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        if self._backend.chat_template is None:
            raise ModelError(
                f"{self._backend.name_or_path}: the tokenizer has no chat template; turn the chat template off, or add "
                "one to its tokenizer_config.json"
            )
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self._backend.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise ModelError(f"{self._backend.name_or_path}: the chat template refuses a prompt: {error}") from error


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """The tokenizer of a local model directory; nothing is downloaded and no code of the directory is run.

    A ``tokenizer.json`` is used as it stands. ``AutoTokenizer`` would replace the file's splitting rules by those of the
    model type: with a ``qwen2`` config it silently turns any other tokenizer's text into wrong ids.

    Raises:
        ModelError: no such directory, no tokenizer in it, one that cannot be read, or one without EOS.
    """
    _check_directory(model_dir)
    if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(f"{model_dir}: no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")
    try:
        backend = _loader(model_dir).from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(f"{model_dir}: the tokenizer cannot be read: {error}") from error
    if backend.eos_token_id is None:
        raise ModelError(f"{model_dir}: the tokenizer names no EOS token, so no response could end")
    return Tokenizer(backend)


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
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        length = config.get("max_position_embeddings") or config["text_config"]["max_position_embeddings"]
        return int(length)
    except FileNotFoundError as error:
        raise ModelError(f"{model_dir}: no config.json, so this is not a model directory") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: no readable max_position_embeddings: {error!r}") from error


def vocabulary_size(model_dir: Path) -> int | None:
    """Rows of the model's embedding: every token id is below this. None where there is no ``config.json`` that states it."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _check_directory(model_dir: Path) -> None:
    if not model_dir.is_dir():
        raise ModelError(
            f"{model_dir}: no such model directory; rlep downloads none (`hf download ORG/MODEL --local-dir DIR` does)"
        )
