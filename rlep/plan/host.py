"""Host memory, shared memory and disk of a run, beside the memory of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from rlep.config.schema import Config
from rlep.plan.learner import plan_learner
from rlep.plan.memory import GIB
from rlep.plan.model_shape import ModelShape, width_of

ENGINE_BYTES, RANK_BYTES = 2 * GIB, 3 * GIB // 2
"""Host memory of a process on GPUs beside tensors: the code of vLLM or torch, CUDA's context. Rough."""
TRAINER_WIDTH = 12
"""Bytes a trained weight in a checkpoint's trainer state: float32 and two moments."""
VERSIONS = 2
"""Published versions of the weights that shared memory holds at once."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Bytes with all ranks and generators on one machine; 7B means 7.6 billion weights on eight GPUs, colocated."""

    kept_bytes: int
    """Shares of the ranks that are asleep or offloaded, in pinned memory: 85 GiB for 7B. On CPUs all that they hold."""
    saved_bytes: int
    """Copies that ranks write a checkpoint from while they go on, at the end the whole model on rank 0: 99 GiB for 7B."""
    published_bytes: int
    """Two versions of the weights in /dev/shm, 28 GiB for 7B; 0 where they go over the network."""
    process_bytes: int
    """Processes beside all that."""
    checkpoint_bytes: int
    """One checkpoint on disk, 107 GB for 7B."""
    checkpoints: int
    """Checkpoints on disk at once: those kept, the best, and the one that is being written."""

    @property
    def memory_bytes(self) -> int:
        """Host memory while a checkpoint is written, the most there is."""
        return self.kept_bytes + self.saved_bytes + self.published_bytes + self.process_bytes

    @property
    def disk_bytes(self) -> int:
        """Disk that checkpoints take, the one that is being written among them."""
        return self.checkpoint_bytes * self.checkpoints


def plan_host(config: Config, shape: ModelShape, *, learns: bool = True) -> HostPlan:
    """Return the plan; ``learns``: the command has a learner."""
    learner, generator, rule = config.learner, config.generator, config.checkpoint
    processes = ENGINE_BYTES * generator.count if generator.gpus else 0
    if not learns:
        return HostPlan(0, 0, 0, processes, 0, 0)
    rank, ranks = plan_learner(config, shape), learner.ranks
    adapters = shape.adapter_parameters(learner.lora_rank, learner.lora_targets)
    weights = shape.parameters * width_of(learner.compute_dtype)  # in model/, in the compute type
    trained = TRAINER_WIDTH * (adapters or shape.parameters)  # in trainer/
    if config.loss.kl_reset:
        trained += weights  # the reference that is reset
    shared = generator.transfer == "shared_memory"
    kept = max(rank.host_bytes, rank.asleep_bytes if config.cluster.placement == "colocated" else 0)
    processes += RANK_BYTES * ranks
    return HostPlan(
        kept_bytes=kept * ranks,
        saved_bytes=trained * learner.replicas + weights + 4 * adapters,
        published_bytes=VERSIONS * shape.parameters * width_of(generator.compute_dtype) if shared else 0,
        process_bytes=processes,
        checkpoint_bytes=trained + weights + 4 * adapters,
        checkpoints=min(rule.keep + 1 + (rule.best is not None), -(-config.run.steps // rule.every)),
    )
