"""Responses that are being generated while the weights change: ``keep`` continues them, ``abort`` begins them again.

A token counts only once the weights that sampled it were confirmed by log-probs. What was generated under weights that
were not confirmed is discarded and generated again. So the caller gets whole responses under confirmed weights, or none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from rlep.core.errors import WeightSyncError
from rlep.core.types import Int32Array, Request, Sampling
from rlep.engines.sampler.requests import sample

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine
    from vllm.outputs import CompletionOutput


class WeightChange:
    """Responses over in-flight weight updates."""

    def __init__(self) -> None:
        self.begun = False
        """Some weights were confirmed: from then on a response may be requested at any time."""
        self._confirmed = asyncio.Event()
        self._rejected = 0

    def change(self) -> None:
        """The weights are about to change."""
        self._confirmed.clear()

    def confirm(self) -> None:
        """The present weights passed the log-prob check."""
        self.begun = True
        self._confirmed.set()

    def reject(self) -> None:
        """The present weights did not pass: what was generated since the change, or is being generated, is void."""
        self._rejected += 1

    async def sample(
        self, engine: AsyncLLMEngine, request: Request, sampling: Sampling
    ) -> tuple[Request, CompletionOutput]:
        """One whole response, each of its tokens under weights that were confirmed."""
        while True:
            await self._confirmed.wait()
            rejected = self._rejected
            _, output = await sample(engine, request, sampling)
            await self._confirmed.wait()
            if rejected == self._rejected and output.finish_reason != "abort":
                return request, output


def token_versions(output: CompletionOutput) -> Int32Array:
    """The policy version that sampled each token ``[T]``, as the engine labelled them.

    Raises ``WeightSyncError`` where a token has no label.
    """
    spans = output.weight_versions or []
    versions = np.repeat([int(span.version) for span in spans], [span.end - span.start for span in spans])
    if len(versions) != len(output.token_ids):
        raise WeightSyncError(f"{len(output.token_ids)} tokens, {len(versions)} of them with a policy version")
    return versions.astype(np.int32)
