"""``PoolClient`` for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from rlep.core.types import AddReport, Trajectory
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.values import PoolStats

T = TypeVar("T")

_CALLS_AT_ONCE = 16


class AsyncPoolClient:
    """The verbs of ``PoolClient``, awaited: each call runs in a thread of its own, at most 16 at once.

    A call whose caller is cancelled still ends by itself, at its deadline at the latest.
    """

    def __init__(self, address: str, **options: Any) -> None:
        """See ``PoolClient``."""
        self._client = PoolClient(address, **options)
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="pool-client")

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._client.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """See ``PoolClient.add``."""
        return await self._run(lambda client: client.add(trajectories))

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int, minimum: int | None = None
    ) -> Sample:
        """See ``PoolClient.sample``."""
        return await self._run(lambda client: client.sample(prompt_ids, count, seed=seed, step=step, minimum=minimum))

    async def get(self, content_id: str, prompt_id: str) -> Trajectory | None:
        """See ``PoolClient.get``."""
        return await self._run(lambda client: client.get(content_id, prompt_id))

    async def remove(self, prompt_id: str, content_ids: Sequence[str], *, quarantine: bool = False) -> int:
        """See ``PoolClient.remove``."""
        return await self._run(lambda client: client.remove(prompt_id, content_ids, quarantine=quarantine))

    async def export(self, *, after: str = "") -> AsyncIterator[Trajectory]:
        """See ``PoolClient.export``."""
        following: str | None = after
        while following is not None:
            start = following
            page, following = await self._run(lambda client: client.export_page(start))  # noqa: B023
            for trajectory in page:
                yield trajectory

    async def seal(self) -> str:
        """See ``PoolClient.seal``."""
        return await self._run(PoolClient.seal)

    async def digest(self) -> str:
        """See ``PoolClient.digest``."""
        return await self._run(PoolClient.digest)

    async def stats(self) -> PoolStats:
        """See ``PoolClient.stats``."""
        return await self._run(PoolClient.stats)

    async def prompt_ids(self) -> list[str]:
        """See ``PoolClient.prompt_ids``."""
        return await self._run(PoolClient.prompt_ids)

    async def content_ids(self, prompt_id: str) -> list[str]:
        """See ``PoolClient.content_ids``."""
        return await self._run(lambda client: client.content_ids(prompt_id))

    async def names(self) -> list[str]:
        """See ``PoolClient.names``."""
        return await self._run(PoolClient.names)

    async def _run(self, verb: Callable[[PoolClient], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb, self._client)
