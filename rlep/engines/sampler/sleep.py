"""An engine that frees its device's memory while the learner uses it, and takes new weights as it wakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine

LEVEL = 2
"""Weights and KV cache are discarded. Level 1 would copy weights to the host that are replaced when the engine wakes."""


class SleepState:
    """Parts of its memory that one engine holds."""

    def __init__(self) -> None:
        self._holds: Literal["all", "weights", "nothing"] = "all"

    async def fall_asleep(self, engine: AsyncLLMEngine) -> None:
        """Abort what is running, empty the prefix cache and free all memory. Idempotent."""
        if self._holds == "weights":  # a load broke off; vLLM frees all or nothing
            await engine.wake_up(["kv_cache"])
            self._holds = "all"
        if self._holds == "all":
            await engine.sleep(LEVEL)
            self._holds = "nothing"

    @asynccontextmanager
    async def waking(self, engine: AsyncLLMEngine) -> AsyncGenerator[None]:
        """Weights have memory within the block, which loads them, and the KV cache after it; a failure leaves it asleep."""
        if self._holds == "nothing":
            await engine.wake_up(["weights"])
            self._holds = "weights"
        yield
        if self._holds == "weights":
            await engine.wake_up(["kv_cache"])
            self._holds = "all"
