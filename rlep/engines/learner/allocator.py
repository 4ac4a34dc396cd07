"""Settings of torch's allocator for a rank; torch reads them when it first allocates for a GPU, so nothing here imports it."""

from __future__ import annotations

import os

from rlep.config.roles import LearnerConfig

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that have them; the second is the older name."""


def allocator_settings(learner: LearnerConfig) -> dict[str, str]:
    """Return the variable to set, or nothing where the user has set one.

    Rows of ever new lengths would leave gaps between blocks of fixed size. And torch rounds pinned host memory up to powers of
    two, nearly twice what a 7B model needs, but for blocks that it does not cache: those are wanted again only where every
    update copies the gradients of all weights to the host. (``pinned_max_round_threshold_mb`` must not take its place: a
    cached block may then be given out for a larger one.)
    """
    if any(name in os.environ for name in NAMES):
        return {}
    exact = "" if learner.cpu_offload and not learner.lora_rank else ",pinned_max_cached_size_mb:1"
    return {NAMES[0]: f"expandable_segments:True{exact}"}
