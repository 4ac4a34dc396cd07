"""A random Qwen2 of 100k parameters with a word-level tokenizer, as a model directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlep.config.schema import Config
from rlep.core.types import Completion, Float32Array, Int32Array, Request
from rlep.engines.sampler.engine import Sampler
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.weight_update import (
    LOGPROB_TOLERANCE,
    BroadcastGroup,
    Probe,
    SharedMemoryWeights,
    TensorSpec,
    WeightUpdate,
)

VOCABULARY = 42
CONTEXT = 96
PAD, EOS = 0, 1
BLOCK = 32
SMALL_BLOCKS: dict[str, Any] = {"block_size": BLOCK, "enable_prefix_caching": True}
"""For ``generator.engine``: blocks that prompts of less than the context can share."""


def build_model(directory: Path, *, tied: bool) -> Qwen2ForCausalLM:
    """Save model and tokenizer in ``directory``; the weights are large enough for far from uniform log-probs."""
    words = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(directory)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
        perturb(model, 0.1)
    model.save_pretrained(directory)
    return model.eval()


def config_of(context: int = CONTEXT, *, colocated: bool = False, **generator: Any) -> Config:
    """The configuration of a generator with this context, in tokens."""
    return Config().with_values(
        data={"max_prompt_tokens": context - 1},
        rollout={"max_tokens": 1},
        generator={"kv_cache_gib": 0.0625, **generator},
        cluster={"placement": "colocated" if colocated else "split"},
    )


def perturb(model: Qwen2ForCausalLM, scale: float) -> None:
    """Add noise of standard deviation ``scale`` to every weight."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=scale)


def true_logprobs(model: Qwen2ForCausalLM, prompt: Int32Array, response: Int32Array) -> Float32Array:
    """Log-probs of ``response`` after ``prompt`` from a plain forward pass in float32, ``[T]``."""
    tokens = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
    with torch.no_grad():
        rows = model(tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)  # [T, V]
    return rows.gather(1, tokens[0, len(prompt) :, None])[:, 0].numpy()


@dataclass
class Published:
    """A started sampler, and the model whose weights it is given."""

    config: Config
    sampler: Sampler
    model: Qwen2ForCausalLM

    @property
    def layout(self) -> tuple[TensorSpec, ...]:
        """Weights that are published, in this order."""
        dtype = self.config.generator.compute_dtype
        return tuple(TensorSpec(name, dtype, tuple(weight.shape)) for name, weight in self.model.named_parameters())

    @property
    def tolerance(self) -> float:
        """Of the log-prob check."""
        return LOGPROB_TOLERANCE[self.config.generator.compute_dtype]

    def offer(self, source: SharedMemoryWeights | BroadcastGroup, version: int) -> WeightUpdate:
        """The present weights, which go by ``source``."""
        probes = tuple(
            Probe(prompt, response, true_logprobs(self.model, prompt, response))
            for prompt, response in (sequence(5, 20, 1), sequence(9, 30, 2))
        )
        checksums = checksums_of(self.model, getattr(torch, self.config.generator.compute_dtype))
        return WeightUpdate(version, self.layout, source, probes, self.tolerance, checksums)


def checksums_of(model: Qwen2ForCausalLM, dtype: torch.dtype = torch.float32) -> tuple[int, ...]:
    """Of all weights, as they are published in ``dtype``."""
    return tuple(int(checksum(weight.to(dtype))) for weight in model.parameters())


def sequence(prompt_length: int, response_length: int, seed: int) -> tuple[Int32Array, Int32Array]:
    """A random prompt and response."""
    tokens = np.random.default_rng(seed).integers(2, VOCABULARY, prompt_length + response_length).astype(np.int32)
    return tokens[:prompt_length], tokens[prompt_length:]


def worst_difference(model: Qwen2ForCausalLM, wanted: list[Request], found: dict[str, Completion]) -> float:
    """Largest difference of the responses' log-probs to those of a plain forward pass."""
    return max(
        float(np.abs(true_logprobs(model, request.tokens, found[request.id].tokens) - found[request.id].logprobs).max())
        for request in wanted
    )


def requests(count: int) -> list[Request]:
    """Four of each prompt, of 4 to 48 tokens."""
    return [
        Request(f"r{i}", f"p{i // 4}", sequence(4 + 9 * (i // 4) % 45, 0, i // 4)[0], i % 4, 100 + i)
        for i in range(count)
    ]
