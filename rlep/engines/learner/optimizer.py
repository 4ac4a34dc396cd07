"""AdamW over FSDP shards: learning-rate schedule, clipping by global norm, and the guard against non-finite gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rlep.config.training import UpdateConfig

ADAM_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of one optimizer step."""

    applied: bool
    """False: the gradient norm was not finite on some rank, and weights and moments were left untouched on all."""
    grad_norm: float
    """Global L2 norm before clipping."""
    lr: float


class ShardedAdamW:
    """``torch.optim.AdamW`` (fused) on each rank's local shards.

    AdamW acts on every element alone, so stepping the plain local tensors equals stepping the DTensors, without their
    dispatch cost. Only the norm needs the other ranks.
    """

    def __init__(self, parameters: Sequence[tuple[str, DTensor]], update: UpdateConfig, end: int) -> None:
        """``end``: rollouts or updates of the run, whichever ``update.unit`` counts."""
        self._update, self._end = update, end
        self._parameters = tuple(parameters)
        self._locals = {name: nn.Parameter(parameter.to_local().detach()) for name, parameter in self._parameters}
        # A rank beyond a short tensor's first dimension holds an empty shard.
        held = [local for local in self._locals.values() if local.numel()]
        self._adamw = torch.optim.AdamW(
            held or [nn.Parameter(torch.zeros(1))],
            lr=update.lr,
            betas=update.betas,
            eps=ADAM_EPS,
            weight_decay=update.weight_decay,
            fused=True,
        )
        # Made like the shards, not from local tensors: those DTensor would move from the host to the mesh's device.
        self._moments = {
            key: {name: torch.zeros_like(parameter.detach()) for name, parameter in self._parameters}
            for key in ("exp_avg", "exp_avg_sq")
        }
        for name, local in self._locals.items():
            if local.numel():
                moments = {key: held[name].to_local() for key, held in self._moments.items()}
                self._adamw.state[local] = {
                    "step": torch.zeros((), dtype=torch.float32, device=local.device),
                    **moments,
                }

    def lr_at(self, index: int) -> float:
        """Learning rate of rollout or update ``index``."""
        return self._update.lr_at(index, self._end)

    @property
    def steps(self) -> int:
        """Count of the updates that have been applied."""
        state = next(iter(self._adamw.state.values()), None)
        return 0 if state is None else int(state["step"].item())

    def step(self, index: int) -> StepResult:
        """Clip and apply the gradients of all shards, with the learning rate of rollout or update ``index``; collective."""
        lr = self.lr_at(index)
        grads = []
        for name, parameter in self._parameters:
            gradient = parameter.grad
            local = self._locals[name]
            local.grad = gradient.to_local() if isinstance(gradient, DTensor) else None
            if local.grad is not None and local.numel():
                grads.append(local.grad)
        # Known to all ranks before any of them changes a weight: all clip alike, or all leave the update out.
        norm = self._global_norm(grads)
        applied = math.isfinite(norm)
        if applied:
            clip = self._update.clip_norm
            if norm > clip:
                clip_grads_with_norm_(self._locals.values(), clip, torch.tensor(norm))
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
        self.drop_gradients()
        return StepResult(applied, norm, lr)

    def drop_gradients(self) -> None:
        """Drop the gradients of this update."""
        for name, parameter in self._parameters:
            parameter.grad = None
            self._locals[name].grad = None

    def moments(self) -> dict[str, DTensor]:
        """AdamW's two moments under ``exp_avg.<weight>`` and ``exp_avg_sq.<weight>``, sharing memory with the optimizer."""
        return {f"{key}.{name}": moment for key, held in self._moments.items() for name, moment in held.items()}

    def set_steps(self, steps: int) -> None:
        """Restore AdamW's step count, which its bias correction uses."""
        for state in self._adamw.state.values():
            state["step"].fill_(float(steps))

    def _global_norm(self, grads: list[Tensor]) -> float:
        """L2 norm over all shards, summed in float64: over all ranks, so that replicas cannot come to clip differently."""
        square = get_total_norm(grads).double().square()
        mesh = self._parameters[0][1].device_mesh
        if mesh.size() > 1:
            square = square.to(mesh.device_type)
            dist.all_reduce(square)
            square /= mesh.size() // mesh.size(mesh.ndim - 1)  # replicas hold the same gradients
        return math.sqrt(value) if math.isfinite(value := float(square.item())) else value
