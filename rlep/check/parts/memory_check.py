"""Check of the plan: what a rank takes at its peak beside what ``rlep plan`` says for the same shape."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path

import torch

from rlep.check.parts.learner_checks import make_rank
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig
from rlep.core.heap import resident, return_freed_memory
from rlep.core.plural import sized
from rlep.core.types import SequenceBatch
from rlep.engines.learner.packed_row import largest_update
from rlep.engines.learner.rank import LearnerRank
from rlep.plan.learner import plan_learner
from rlep.plan.model_shape import read_shape

ALLOWED = 1.25
"""Of measured over planned bytes."""
SMALL_BYTES = 32 * 2**20
"""Allowed beside it on CPUs, for small blocks and code."""
SHORT = 4
"""Tokens of a sequence and a micro-batch of the update that loads the code."""


def memory(rig: Rig, learner: type[LearnerRank] = LearnerRank) -> str:
    """The peak of one rank in an update of three full micro-batches, and what the plan promised."""
    alone = rig.config.learner.model_copy(update={"ranks": 1, "replicas": 1})
    plan = plan_learner(rig.plain.model_copy(update={"learner": alone}), read_shape(rig.model))
    planned = plan.peak_bytes - (plan.host_bytes if rig.cuda else 0)
    _update(rig, learner, "warm", largest_update(1, SHORT, SHORT))
    before = 0 if rig.cuda else resident()
    measured = (
        _update(rig, learner, "memory", largest_update(1, rig.config.learner.micro_batch_tokens, rig.context)) - before
    )
    found = f"{sized(measured)} at the peak, {sized(planned)} planned for two layers, ratio {measured / planned:.2f}"
    if measured > ALLOWED * planned + (0 if rig.cuda else SMALL_BYTES):
        raise CheckFailed(f"{found}, allowed {ALLOWED:g}")
    return found


def _update(rig: Rig, learner: type[LearnerRank], name: str, batch: SequenceBatch) -> int:
    """Peak of the GPU's allocated memory, or of this process's resident memory, in one update; what was freed is given back."""
    with closing(make_rank(rig, learner, name)) as made:
        if rig.cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            return_freed_memory()
            Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        made.update(batch, rollout=0)
        peak = torch.cuda.max_memory_allocated() if rig.cuda else resident("VmHWM")
    del made
    gc.collect()
    if not rig.cuda:
        return_freed_memory()
    return peak
