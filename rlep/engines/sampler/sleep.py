"""An engine that lets go of its device's memory while the learner has it, and takes new weights as it wakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LEVEL = 2
"""Weights and KV cache are thrown away. Level 1 would copy weights to the host that are replaced when the engine wakes."""


class Rest:
    """How much of its memory one engine has."""

    def __init__(self) -> None:
        self._has: Literal["all", "weights", "nothing"] = "all"

    async def fall_asleep(self, engine: AsyncLLM) -> None:
        """Abort what is running, empty the prefix cache and let go of all memory. Can be repeated."""
        if self._has == "weights":  # a load broke off; vLLM lets go of all or nothing
            await engine.wake_up(["kv_cache"])
            self._has = "all"
        if self._has == "all":
            await engine.sleep(LEVEL)
            self._has = "nothing"

    @asynccontextmanager
    async def waking(self, engine: AsyncLLM) -> AsyncGenerator[None]:
        """Weights have memory within the block, which fills it, and the KV cache after it; a failure leaves it asleep."""
        if self._has == "nothing":
            await engine.wake_up(["weights"])
            self._has = "weights"
        yield
        if self._has == "weights":
            await engine.wake_up(["kv_cache"])
            self._has = "all"
