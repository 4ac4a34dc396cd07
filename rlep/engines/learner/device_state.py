"""One process as a rank: its threads, its device, the process group, and the state of torch's random generators."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from rlep.config.roles import LearnerConfig
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, OutOfMemory, first_line
from rlep.core.heap import keep_freed_memory
from rlep.core.plural import sized
from rlep.core.seeds import seed_for
from rlep.engines.rendezvous import store_at

_LACKING = ("out of memory", "_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")
"""Texts in errors of the GPU, its pinned host memory and NCCL, of cuBLAS and its kin, and of the host."""


def join_ranks(config: Config, rank: int, world_size: int, meeting_point: str, listening: socket.socket | None) -> None:
    """Set up this process and join the default process group; blocks until all ranks are there. See ``LearnerRank``."""
    keep_freed_memory(None, one_arena=True)
    learner = config.learner
    torch.set_num_threads(config.learner_threads)
    if learner.gpus:
        if not (count := torch.cuda.device_count()):
            raise ConfigError(f"learner.gpus = {learner.gpus:g}, and torch sees no GPU on {socket.gethostname()}")
        torch.cuda.set_device(rank % count)
    torch.manual_seed(seed_for(config.run.seed, "learner", rank))
    dist.init_process_group(
        "nccl" if learner.gpus else "gloo",
        store=store_at(meeting_point, world_size, learner.collective_timeout_s, listening),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=learner.collective_timeout_s),
    )


def rank_mesh(learner: LearnerConfig, world_size: int) -> DeviceMesh:
    """All ranks: one dimension to shard over, the last, before it one of replicas if there are several.

    Consecutive ranks are the shards of one replica.
    """
    if learner.replicas == 1:
        return init_device_mesh(learner.device, (world_size,))
    shape = learner.replicas, world_size // learner.replicas
    return init_device_mesh(learner.device, shape, mesh_dim_names=("replica", "shard"))


def rows_of(shard: DTensor) -> slice:
    """The part of the first dimension that this rank has: FSDP cuts it into equal lengths, the last ones shorter or empty."""
    mesh, length = shard.device_mesh, len(shard.to_local())
    sharding = mesh.ndim - 1
    first = mesh.get_local_rank(sharding) * -(-shard.shape[0] // mesh.size(sharding))
    return slice(first, first + length)


def current_device(kind: str) -> torch.device:
    """The CPU, or the GPU (``cuda``) that this process has selected."""
    return torch.device(kind, torch.cuda.current_device() if kind == "cuda" else None)


def out_of_memory(error: RuntimeError, rank: int, work: str) -> OutOfMemory | None:
    """``error`` with the numbers if it is a lack of memory, of the GPU or the host; torch has a class for one kind only."""
    if not any(words in str(error) for words in _LACKING):
        return None
    said = first_line(error)
    if torch.cuda.is_initialized():
        free, whole = torch.cuda.mem_get_info()
        said += (
            f" (peak of this rank {sized(torch.cuda.max_memory_allocated())}, GPU {sized(whole)}, free {sized(free)})"
        )
    return OutOfMemory(f"learner rank {rank} has too little memory for {work}: {said}")


def random_state(rank: int, device: torch.device) -> dict[str, Tensor]:
    """The present state, under this rank's names."""
    state = {f"rng.cpu.{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"rng.cuda.{rank}"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(state[f"rng.cpu.{rank}"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rng.cuda.{rank}"])
