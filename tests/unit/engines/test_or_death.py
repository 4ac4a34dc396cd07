"""Calls to an engine that vLLM never answers, because the engine died in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlep.engines.sampler import requests


class Engine:
    """Dies once somebody waits for it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left = False

    async def check_health(self) -> None:
        """As vLLM's, of an engine whose process ended."""
        if self.asked.is_set():
            raise RuntimeError("EngineCore died")

    async def never(self) -> None:
        """A call without an answer."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True


async def answer() -> int:
    return 7


async def test_an_unanswered_call_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_HEALTH_S", 0.01)
    engine: Any = Engine()
    with pytest.raises(RuntimeError, match="EngineCore died"):
        await requests.or_death(engine, engine.never())
    await asyncio.sleep(0)
    assert engine.left


async def test_an_answer_is_passed_on() -> None:
    engine: Any = Engine()
    assert await requests.or_death(engine, answer()) == 7
