"""Responses that are being written while the weights change: ``keep`` lets them go on, ``abort`` begins them again.

Nothing written since a change counts before those weights passed the handshake; what was written under weights that did
not pass is thrown away and written again. So whoever asked gets whole responses under confirmed weights, or none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlep.core.errors import WeightSyncError
from rlep.core.types import Int32Array, Request, Sampling
from rlep.engines.sampler.requests import sample

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

OnUpdate = Literal["wait", "keep", "abort"]
"""What an update does to the responses being written: it waits for them, or see above."""


class WeightChange:
    """The way of responses over weight changes."""

    def __init__(self) -> None:
        self.begun = False
        """Whether any weights were confirmed: from then on a response may be asked for at any time."""
        self._confirmed = asyncio.Event()
        self._rejected = 0

    def change(self) -> None:
        """The weights are about to change."""
        self._confirmed.clear()

    def confirm(self) -> None:
        """The present weights passed the handshake."""
        self.begun = True
        self._confirmed.set()

    def reject(self) -> None:
        """The present weights did not pass: what was written since the change, or is being written, is void."""
        self._rejected += 1

    async def sample(self, engine: AsyncLLM, request: Request, sampling: Sampling) -> tuple[Request, CompletionOutput]:
        """One whole response, each of its tokens under weights that were confirmed."""
        while True:
            await self._confirmed.wait()
            rejected = self._rejected
            _, output = await sample(engine, request, sampling)
            await self._confirmed.wait()
            if rejected == self._rejected and output.finish_reason != "abort":
                return request, output


def token_versions(output: CompletionOutput) -> Int32Array:
    """The policy version that sampled each token ``[T]``, as the engine itself labelled them.

    Raises ``WeightSyncError`` where a token has no label.
    """
    spans = output.weight_versions or []
    versions = np.repeat([int(span.version) for span in spans], [span.end - span.start for span in spans])
    if len(versions) != len(output.token_ids):
        raise WeightSyncError(f"{len(output.token_ids)} tokens, {len(versions)} of them with a policy version")
    return versions.astype(np.int32)
