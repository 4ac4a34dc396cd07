"""Options of a learner, without torch: ``launch`` builds these from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rlep.algorithms.objective import LossOptions
from rlep.core.errors import ConfigError

WeightDtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Which layers get low-rank adapters, and how large."""

    rank: int
    """Rows of A and columns of B; at least 1."""
    alpha: float
    """The product is scaled by ``alpha / rank``."""
    targets: tuple[str, ...] = ("all-linear",)
    """Names of linear layers, e.g. ``q_proj``; ``all-linear`` is each but the output head."""
    seed: int = 0
    """Of the adapters' first values."""

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """How the model is sharded and computed."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; trained weights and gradient reduction are always float32."""
    reshard_after_forward: bool = False
    """Free each layer's gathered weights between forward and backward: less memory, one more all-gather."""
    unsharded_gradients: bool = False
    """Add up the micro-batches' gradients before they are reduce-scattered, once an update instead of once a micro-batch:
    every rank then holds a whole float32 gradient, 4 bytes a parameter."""
    activation_checkpointing: bool = False
    """Save only each layer's input for the backward pass and recompute the rest."""
    cpu_offload: bool = False
    """Keep shards, gradients and optimizer state in host memory."""
    compile: bool = False
    """``torch.compile`` each layer."""
    lora: LoraOptions | None = None
    """Train adapters on frozen weights, which are then held in ``dtype``; None trains all weights."""


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """AdamW and its learning-rate schedule; the defaults are the paper's."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    """Gradients are scaled down to this global L2 norm; 0 leaves them alone."""
    unit: Literal["rollouts", "updates"] = "rollouts"
    """What ``warmup`` and ``total`` count."""
    warmup: int = 10
    """Linear warm-up: factors 1/warmup, 2/warmup, … 1; 0 starts at the full rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up."""
    total: int = 0
    """The end of a linear or cosine decay: the rollout or update after the last one; unused by ``constant``."""
    floor: float = 0.0
    """Factor at the end of the decay, which the last rollout or update is one part above."""

    def __post_init__(self) -> None:
        if self.schedule != "constant" and self.total <= self.warmup:
            raise ConfigError(
                f"schedule {self.schedule!r} needs total > warmup, got total {self.total}, warmup {self.warmup} {self.unit}"
            )

    def lr_at(self, index: int) -> float:
        """The learning rate at the ``index``-th (from 0) rollout or update."""
        return self.lr * self._factor(index)

    def _factor(self, index: int) -> float:
        if index < self.warmup:
            return (index + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (index - self.warmup) / (self.total - self.warmup))  # the last one is above the floor
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.floor + (1.0 - self.floor) * left


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """Everything a rank needs besides the model; equal on all ranks."""

    policy: PolicyOptions = field(default_factory=PolicyOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    reference: Path | None = None
    """Model directory of the reference policy; only ``loss.kl_coef`` uses it."""
    replicas: int = 1
    """Copies of the model, each sharded over an equal part of the ranks (HSDP); divides the number of ranks."""
    device: Literal["cpu", "cuda"] = "cpu"
    """``cpu`` communicates through gloo, ``cuda`` through NCCL."""
    micro_batch_tokens: int = 16384
    """Most tokens (prompt + response) in one forward pass of one rank; a longer sequence is a micro-batch alone."""
    longest_sequence: int = 0
    """Tokens of the longest sequence that ``LearnerRank.rehearse`` prepares for; 0: nothing is rehearsed."""
    threads: int = 0
    """CPU threads of this rank; 0 is torch's default."""
    collective_timeout_s: float = 300.0
    """A rank that does not join a collective for this long fails the group."""
    keep_start_weights: bool = False
    """Each rollout's first update copies the weights before it, for ``LearnerRank.score(rollout=…)``."""
    seed: int = 0
    """Seed of torch's generators, together with the rank."""

    def __post_init__(self) -> None:
        if self.policy.cpu_offload and self.device == "cpu":
            raise ConfigError(
                "cpu_offload = true: a learner on CPUs has its weights in host memory already; turn it off"
            )
        if (self.loss.kl_coef > 0) != (self.reference is not None):
            raise ConfigError(
                f"kl_coef = {self.loss.kl_coef} and reference = {self.reference}: a KL term needs a reference policy,"
                " and a reference policy is used by nothing else"
            )
