"""Environments of the file beside this one, in worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlep.config.environment import EnvironmentConfig
from rlep.services.environment.local import LocalEnvironments, limits_of

Make = Callable[..., Awaitable[LocalEnvironments]]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """A function that starts environments of a class, which are closed after the test."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    async with AsyncExitStack() as stack:

        async def start(name: str, *, idle_s: float = 600, memory_mb: int = 4096, **keys: Any) -> LocalEnvironments:
            factory = name if ":" in name else f"rough_environments:{name}"
            config = EnvironmentConfig(factory=factory, **keys)
            limits = replace(limits_of(config), memory_mb=memory_mb, recycle_mb=memory_mb // 2)
            made = LocalEnvironments(config, idle_s=idle_s, limits=limits)
            stack.callback(made.close)
            await made.start()
            return made

        yield start
