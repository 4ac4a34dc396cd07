"""vLLM's CPU sampler with the random numbers of seeded requests drawn some steps ahead; the same numbers, so the same tokens.

On a CPU vLLM asks each request's generator for one number a step, which took a tenth of the whole time. Here a generator is
asked for many at once, and gives the numbers that it would have given one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch

from rlep.engines.cpu.private import TopKTopPSampler, apply_top_k_top_p, fused_gumbel_argmax, replace_cpu_sampler
from rlep.engines.sampler.vllm_worker import WorkerExtension

AHEAD = 64
"""Numbers that are drawn from a generator at once."""
_BOUND = 2**31
"""vLLM's."""


class DrawnAhead(TopKTopPSampler):
    """vLLM's sampling on a CPU, for raw log-probs."""

    def __init__(self) -> None:
        super().__init__("raw_logprobs")
        self._drawn: WeakKeyDictionary[torch.Generator, list[int]] = WeakKeyDictionary()
        """By generator, the next number last. A generator lives as long as its request, in the batch or not."""

    def forward_cpu(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, None]:
        """Sampled tokens ``[B]`` of ``[B, V]`` logits, which may be changed; ``generators`` by row."""
        logits = apply_top_k_top_p(logits, k, p).to(torch.float32)
        seeds = torch.randint(0, _BOUND, (len(logits),))
        if generators:
            seeds[list(generators)] = torch.tensor(self._numbers(generators.values()))
        return fused_gumbel_argmax(logits, seeds), None

    def _numbers(self, generators: Iterable[torch.Generator]) -> list[int]:
        numbers = []
        for generator in generators:
            drawn = self._drawn.get(generator)
            if not drawn:
                drawn = torch.randint(0, _BOUND, (AHEAD,), generator=generator).tolist()[::-1]
                self._drawn[generator] = drawn
            numbers.append(drawn.pop())
        return numbers


class DrawingWorkerExtension(WorkerExtension):
    """What vLLM mixes into its worker on a CPU with acceleration."""

    def draw_ahead(self) -> None:
        """Sample by ``DrawnAhead``; on CPUs that vLLM has no kernel for nothing changes."""
        replace_cpu_sampler(self.model_runner, DrawnAhead())
