"""A small model in the shape of the configured one, and batches for it: nothing has to be downloaded, and it starts quickly."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rlep.algorithms.packing import plain_batch
from rlep.config.schema import Config
from rlep.core.errors import ModelError
from rlep.core.types import Int32Array, SequenceBatch
from rlep.engines.tokenizer import TOKENIZER_FILES

LAYERS = 2
SHARE = 0.4
"""Of the GPU's memory for the generator of a check, beside which a learner has to fit."""
OTHER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "merges.txt",
    "chat_template.jinja",
    "added_tokens.json",
)


@dataclass(frozen=True, slots=True)
class Rig:
    """Subject of the checks; it can be pickled."""

    config: Config
    model: Path
    """Directory of the small model."""
    scratch: Path
    """An empty directory, for everything a check writes."""
    shared: Path
    """An empty directory in shared memory."""

    @property
    def cuda(self) -> bool:
        """The learner is configured for GPUs."""
        return self.config.learner.gpus > 0

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Type that the learner computes in."""
        return self.config.learner.compute_dtype

    @property
    def context(self) -> int:
        """The longest sequence of the configuration, in tokens."""
        return self.config.context

    @property
    def plain(self) -> Config:
        """The configuration without a reference policy, a teacher, a correction and a schedule, at temperature 1."""
        return self.config.with_values(
            loss={"kl_coef": 0.0, "teacher": None, "reward_coef": 1.0, "correction": None, "temperature": 1},
            update={"warmup": 0, "schedule": "constant", "lr": 0.01, "stream": False},
        )

    def learner(self, **changes: Any) -> Config:
        """The plain configuration with one copy of the model, and these changes of its learner."""
        return self.plain.with_values(learner={"replicas": 1} | changes)

    def sampler(self, share: float = SHARE) -> Config:
        """The configuration with one generator of one worker, a share of the GPU for it, and no learner beside it."""
        generator = {"count": 1, "tensor_parallel": 1, "gpus": min(1.0, self.config.generator.gpus)}
        return self.config.with_values(
            generator=generator | {"memory_utilization": share},
            learner={"ranks": 1, "replicas": 1},
            rollout={"max_staleness": 0},
        )

    def batch(self, lengths: Sequence[int], seed: int = 0) -> SequenceBatch:
        """Random sequences of these lengths, a third of each its prompt, groups of two with advantages 1 and -1."""
        vocabulary = int(AutoConfig.from_pretrained(self.model, trust_remote_code=False).vocab_size)
        draw = np.random.default_rng(seed)
        tokens, numbers = draw.integers(0, vocabulary, size=sum(lengths)), np.arange(len(lengths), dtype=np.int32)
        return replace(
            plain_batch(tokens, lengths, np.maximum(1, np.array(lengths) // 3)),
            advantages=np.where(numbers % 2, -1.0, 1.0).astype(np.float32),
            groups=numbers // 2,
        )

    def short_batch(self) -> SequenceBatch:
        """Four sequences of 30, 21, 15 and 9 tokens, cut where the context is shorter."""
        return self.batch([min(length, self.context - 1) for length in (30, 21, 15, 9)])


def scored(batch: SequenceBatch, logprobs: np.ndarray[Any, np.dtype[np.float32]]) -> SequenceBatch:
    """The batch with old log-probs ``[R]``, as an update wants it."""
    return replace(batch, old_logprobs=logprobs)


def halves(batch: SequenceBatch) -> list[tuple[Int32Array, Int32Array]]:
    """Each sequence as (prompt, response)."""
    parts = np.split(batch.tokens, batch.offsets[1:-1])
    return [(part[:cut], part[cut:]) for part, cut in zip(parts, batch.prompt_lengths, strict=True)]


def build_model(source: Path, target: Path) -> None:
    """Write a model of two layers in the shape that ``source/config.json`` states, random bfloat16 weights, and its tokenizer.

    Raises:
        ModelError: no config or tokenizer there, or one that transformers does not know.
    """
    tokenizer = [source / name for name in (*TOKENIZER_FILES, *OTHER_FILES) if (source / name).is_file()]
    if not (source / "config.json").is_file() or not tokenizer:
        raise ModelError(
            f"the parts are tried with the model's shape from {source}, which lacks config.json or the tokenizer"
        )
    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        config.num_hidden_layers = LAYERS
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:LAYERS]
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(target)
    except (OSError, ValueError) as error:
        raise ModelError(f"{source / 'config.json'}: {error}") from error
    for file in tokenizer:
        shutil.copy(file, target / file.name)
