"""Tiny random models, ragged batches, and the plain padded single-process computation that the learner must equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlep.algorithms.packing import plain_batch
from rlep.core.types import Float32Array, SequenceBatch

VOCABULARY = 37
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}

ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "qwen2-tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    # A window of 6 tokens is shorter than most sequences below.
    "mistral-window": MistralConfig(**SIZES, tie_word_embeddings=False, sliding_window=6),
}


def write_tiny_model(directory: Path, architecture: str) -> Path:
    """A random model, far enough from uniform predictions that a wrong mask or position shows."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[architecture], dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text('{"stands": "for a tokenizer"}')
    return directory


def ragged_batch(sequences: int = 12, seed: int = 0, *, truncated: bool = True) -> SequenceBatch:
    """Groups of 3 with prompts of 2-5 tokens, responses of 1-19; old log-probs are guesses, some sequences untrained."""
    rng = np.random.default_rng(seed)
    groups = np.arange(sequences, dtype=np.int32) // 3
    prompts = rng.integers(2, 6, size=groups[-1] + 1)[groups]
    responses = rng.integers(1, 20, size=sequences)
    tokens = [rng.integers(0, VOCABULARY, size=p + r) for p, r in zip(prompts, responses, strict=True)]
    trained = np.arange(sequences) % 5 != 3 if truncated else np.ones(sequences, dtype=np.bool_)
    return replace(
        plain_batch(np.concatenate(tokens), prompts + responses, prompts),
        advantages=rng.normal(size=sequences).astype(np.float32),
        trained=trained,
        groups=groups,
        replayed=np.arange(sequences) % 3 == 2,
        old_logprobs=rng.normal(-4.0, 1.0, size=int(responses.sum())).astype(np.float32),
    )


def with_observations(batch: SequenceBatch) -> SequenceBatch:
    """The batch as one of episodes: about a third of the response tokens are an environment's, never a sequence's last."""
    lengths, offsets = np.diff(batch.offsets), batch.offsets[:-1]
    inside = np.arange(len(batch.tokens)) - np.repeat(offsets, lengths) >= np.repeat(batch.prompt_lengths, lengths)
    sampled = inside & (np.random.default_rng(3).random(len(inside)) < 0.65)
    sampled[batch.offsets[1:] - 1] = True
    assert batch.old_logprobs is not None
    return replace(batch, sampled=sampled, old_logprobs=batch.old_logprobs[sampled[inside]])


def with_near_old_logprobs(batch: SequenceBatch, scored: Float32Array) -> SequenceBatch:
    """Old log-probs around the present ones, so that some ratios are clipped and some are not."""
    noise = np.random.default_rng(7).normal(0.0, 0.3, size=len(scored))
    return replace(batch, old_logprobs=(scored + noise).astype(np.float32))


def padded_logprobs(
    model: torch.nn.Module, batch: SequenceBatch, temperature: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of each sequence's sampled tokens, from one right-padded batch of full logits."""
    parts = np.split(batch.tokens.astype(np.int64), batch.offsets[1:-1])
    ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True)
    lengths = torch.tensor([len(part) for part in parts])
    logits = (model(input_ids=ids).logits / temperature).log_softmax(
        -1
    )  # [S, T, V]; causal: pads to the right change nothing
    logprobs, entropies = [], []
    for row, (prompt, length) in enumerate(zip(batch.prompt_lengths.tolist(), lengths.tolist(), strict=True)):
        start = int(batch.offsets[row])
        mask = np.ones(length - prompt, np.bool_) if batch.sampled is None else batch.sampled[start:][prompt:length]
        predicted, kept = logits[row, prompt - 1 : length - 1], torch.from_numpy(mask)
        logprobs.append(predicted.gather(1, ids[row, prompt:length, None]).squeeze(1)[kept])
        predicted = predicted[kept]
        entropies.append(-(predicted.exp() * predicted).sum(-1))
    return logprobs, entropies


def padded_gradients(
    directory: Path,
    batch: SequenceBatch,
    *,
    entropy_coef: float = 0.0,
    sft: bool = False,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of eq. 4 (dual clip 10, token mean) in float64, without packing, sharding or chunking."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
    return model_gradients(model, batch, entropy_coef=entropy_coef, sft=sft, temperature=temperature)


def model_gradients(
    model: torch.nn.Module,
    batch: SequenceBatch,
    *,
    entropy_coef: float = 0.0,
    sft: bool = False,
    temperature: float = 1.0,
) -> tuple[float, dict[str, Tensor]]:
    """The same of a model that is loaded."""
    logprobs, entropies = padded_logprobs(model, batch, temperature)
    assert batch.old_logprobs is not None
    olds = np.split(batch.old_logprobs.astype(np.float64), np.cumsum(batch.sampled_lengths)[:-1])
    count = batch.sampled_lengths[batch.trained].sum()
    loss = torch.zeros((), dtype=torch.float64)
    for index in np.flatnonzero(batch.trained):
        advantage = float(batch.advantages[index])
        ratio = (logprobs[index] - torch.from_numpy(olds[index])).clamp(-20, 20).exp()
        terms = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        if advantage < 0:
            terms = terms.clamp(max=-advantage * 10.0)
        terms = -logprobs[index] if sft else terms
        loss = loss + terms.sum() / count
    kept = batch.trained if batch.regularised is None else batch.regularised
    for index in np.flatnonzero(kept):
        loss = loss - entropy_coef * entropies[index].sum() / batch.sampled_lengths[kept].sum()
    loss.backward()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return float(loss.detach()), {names[id(p)]: p.grad for p in model.parameters() if p.grad is not None}


def relative_error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of the whole gradient, in the L2 norm."""
    assert got.keys() == wanted.keys()
    difference = sum(float((got[name].double() - wanted[name]).square().sum()) for name in wanted)
    return float((difference / sum(float(value.square().sum()) for value in wanted.values())) ** 0.5)
