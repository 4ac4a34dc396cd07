"""Small prompts, trajectories and groups for the tests of ``rlep.algorithms``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from torch import Tensor

from rlep.algorithms.loss import LossSums, PackedTokens, packed_policy_loss
from rlep.algorithms.packing import plain_batch
from rlep.config.training import LossConfig
from rlep.core.types import (
    FinishReason,
    Group,
    Prompt,
    Provenance,
    Sampling,
    SequenceBatch,
    Status,
    Trajectory,
    Verdict,
    prompt_id_of,
)

TOKENIZER = "tok"

PROPERTY = settings(max_examples=40)
"""Property tests: the same examples in every run."""
FEW = settings(PROPERTY, max_examples=12)
"""For properties whose single example is already a whole update."""


def prompt_of(question: str = "1+1", length: int = 2) -> Prompt:
    """A prompt of ``length`` tokens, from 900 upwards."""
    tokens = np.arange(900, 900 + length, dtype=np.int32)
    return Prompt(prompt_id_of(question, "2"), question, "2", tokens)


def trajectory_of(
    prompt: Prompt,
    tokens: int | list[int] = 3,
    *,
    status: Status = "correct",
    version: int = 7,
    sample: str = "",
    finish: FinishReason = "stop",
    tokenizer: str = TOKENIZER,
    logprob: float | None = -0.5,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    mode: str = "raw",
    dtype: str = "float32",
    score: float | None = None,
) -> Trajectory:
    """A verified response with the given tokens, or ``tokens`` of them; its log-probs are all ``logprob``."""
    ids = np.arange(tokens, dtype=np.int32) if isinstance(tokens, int) else np.array(tokens, dtype=np.int32)
    return Trajectory(
        prompt_id=prompt.id,
        tokens=ids,
        logprobs=None if logprob is None else np.full(len(ids), logprob, dtype=np.float32),
        finish_reason=finish,
        verdict=Verdict(status, "2", "math", "1", score=score),
        provenance=Provenance("run/seed", version, tokenizer, sampling, mode, dtype),
        created_at=0.0,
        sample_id=sample,
    )


def fresh_of(prompt: Prompt, statuses: str, *, length: int = 3, version: int = 7) -> list[Trajectory]:
    """One fresh rollout for each of ``"+-"``."""
    return [
        trajectory_of(prompt, length, status="correct" if s == "+" else "wrong", version=version, sample=f"train/{i}")
        for i, s in enumerate(statuses)
    ]


def replays_of(prompt: Prompt, count: int, *, length: int = 3) -> list[Trajectory]:
    """Distinct correct answers of an older policy, 100 … as first token."""
    return [trajectory_of(prompt, [100 + i, *range(length - 1)], version=0, sample=f"old/{i}") for i in range(count)]


def group_of(question: str, statuses: str, replays: int = 0, *, length: int = 3) -> Group:
    """A group with one fresh rollout for each of ``"+-"``."""
    prompt = prompt_of(question)
    return Group(
        prompt, 7, tuple(fresh_of(prompt, statuses, length=length)), tuple(replays_of(prompt, replays, length=length))
    )


def batch_of(
    response_lengths: list[int],
    *,
    prompt_length: int = 1,
    advantages: list[float] | None = None,
    groups: list[int] | None = None,
    replayed: list[bool] | None = None,
    trained: list[bool] | None = None,
    old: np.ndarray | None = None,
    behaviour: np.ndarray | None = None,
) -> SequenceBatch:
    """A batch whose tokens are numbered 0, 1, … from the first to the last."""
    count, lengths = len(response_lengths), np.array(response_lengths, dtype=np.int64) + prompt_length
    return replace(
        plain_batch(np.arange(lengths.sum()), lengths, [prompt_length] * count),
        advantages=np.array(advantages or [0.0] * count, dtype=np.float32),
        trained=np.array(trained if trained is not None else [True] * count),
        groups=np.array(groups or [0] * count, dtype=np.int32),
        replayed=np.array(replayed or [False] * count),
        old_logprobs=None if old is None else old.astype(np.float32),
        behaviour_logprobs=None if behaviour is None else behaviour.astype(np.float32),
    )


def packed_one(loss: LossConfig, **values: Any) -> tuple[float, list[float], LossSums]:
    """Loss and gradient of one sequence with the given ``[R]`` values, weight 1 and advantage 1 unless told otherwise."""
    logprobs = torch.tensor(values.pop("logprobs"), dtype=torch.float64, requires_grad=True)
    count = len(logprobs)
    given: dict[str, Any] = {
        "old_logprobs": logprobs.detach().clone(),
        "advantages": torch.ones(count, dtype=torch.float64),
        "mask": torch.ones(count, dtype=torch.bool),
        "sequences": torch.zeros(count, dtype=torch.int64),
        "weights": torch.ones(1, dtype=torch.float64),
        "replayed": torch.zeros(1, dtype=torch.bool),
    }
    given |= {name: value if isinstance(value, Tensor) else torch.tensor(value) for name, value in values.items()}
    total, sums = packed_policy_loss(PackedTokens(logprobs=logprobs, **given), loss)
    total.backward()
    assert logprobs.grad is not None
    return total.item(), logprobs.grad.tolist(), sums
