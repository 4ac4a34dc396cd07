"""What a command reads before it starts anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rlep.check.prompts_shown import read_prompts
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, ModelError
from rlep.core.types import Prompt
from rlep.data.prompts import PromptSet
from rlep.driver.model_shape import read_shape, undivided
from rlep.engines.tokenizer import Tokenizer, context_length, load_tokenizer, vocabulary_size

FINGERPRINT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a command reads before it starts anything."""

    tokenizer: Tokenizer
    vocabulary: int | None
    """Rows of the model's embedding."""
    model_digest: str
    template_digest: str
    train: PromptSet | None
    evaluation: PromptSet | None

    @property
    def held_out(self) -> tuple[Prompt, ...]:
        """Held-out prompts; none without evaluation files."""
        return self.evaluation.prompts if self.evaluation is not None else ()


def read_inputs(config: Config, *, train: bool = True) -> Inputs:
    """Tokenizer, prompts and the model's fingerprint. Raises ``ModelError`` or ``DataError`` saying what to fix."""
    model, data = config.model, config.data
    tokenizer = load_tokenizer(model.path)
    check_context(config)
    check_divided(config)
    return Inputs(
        tokenizer,
        vocabulary_size(model.path),
        fingerprint(model.path),
        tokenizer.template_digest(chat_template=model.chat_template),
        read_prompts(config, [data.train], tokenizer) if train else None,
        read_prompts(config, data.evaluation, tokenizer) if data.evaluation else None,
    )


def check_context(config: Config) -> None:
    """Raise ``ModelError`` where the longest prompt and the longest response do not fit the model together."""
    prompt, response = config.data.max_prompt_tokens, config.rollout.max_tokens
    context = context_length(config.model.path)
    if prompt + response > context:
        raise ModelError(
            f"data.max_prompt_tokens = {prompt} and rollout.max_tokens = {response} need a context of "
            f"{prompt + response} tokens, {config.model.path} has {context}; lower one of them"
        )


def check_divided(config: Config) -> None:
    """Raise ``ConfigError`` where the workers of a generator cannot share the model's heads."""
    workers, model = config.generator.tensor_parallel, config.model.path
    if workers > 1 and (part := undivided(read_shape(model), workers)):
        raise ConfigError(f"generator.tensor_parallel = {workers}: {model} has {part}, which it must divide")


def fingerprint(model: Path) -> str:
    """Names a model directory's weights: a hash of its config and of the size and both ends of every weight file."""
    digest = hashlib.blake2b(digest_size=16, person=b"rlep.model")
    weights = sorted(model.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{model}: no *.safetensors weights (other formats are not read)")
    for file in [model / "config.json", *weights]:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(FINGERPRINT_BYTES))
            stream.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(stream.read(FINGERPRINT_BYTES))
    return digest.hexdigest()
