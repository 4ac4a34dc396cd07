"""``PoolClient`` for coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rlep.core.types import Trajectory
from rlep.services.pool.rpc.client import PoolClient

P = ParamSpec("P")
T = TypeVar("T")

_CALLS_AT_ONCE = 16


def _awaited(
    verb: Callable[Concatenate[PoolClient, P], T],
) -> Callable[Concatenate[AsyncPoolClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def call(self: AsyncPoolClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.span(verb.__name__):
            return await self._run(functools.partial(verb, self._client, *args, **kwargs))

    return call


class AsyncPoolClient:
    """The verbs of ``PoolClient``, awaited: each call runs in a thread of its own, at most 16 at once.

    A call whose caller is cancelled still ends by itself, at its deadline at the latest.
    """

    def __init__(self, address: str, **options: Any) -> None:
        """Take what ``PoolClient`` takes."""
        self._client = PoolClient(address, **options)
        self.span: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()
        """Entered around each call, with the verb's name: for whoever measures them."""
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="pool-client")
        self._closed = False

    open, lease = _awaited(PoolClient.open), _awaited(PoolClient.lease)
    add, sample, get = _awaited(PoolClient.add), _awaited(PoolClient.sample), _awaited(PoolClient.get)
    fetch, contents, remove = _awaited(PoolClient.fetch), _awaited(PoolClient.contents), _awaited(PoolClient.remove)
    seal, digest, stats = _awaited(PoolClient.seal), _awaited(PoolClient.digest), _awaited(PoolClient.stats)
    prompt_ids, content_ids = _awaited(PoolClient.prompt_ids), _awaited(PoolClient.content_ids)
    names = _awaited(PoolClient.names)

    async def export(self, *, after: str = "") -> AsyncIterator[Trajectory]:
        """Every trajectory, as ``PoolClient.export`` gives them."""
        following: str | None = after
        while following is not None:
            page, following = await self._run(functools.partial(self._client.export_page, following))
            for trajectory in page:
                yield trajectory

    async def close(self) -> None:
        """Close the connection; calls in flight, and later ones, raise ``PoolError``."""
        self._closed = True
        await asyncio.to_thread(self._client.close)
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: Callable[[], T]) -> T:
        # The threads of a closed client take no call; the call then says by itself that it is closed.
        threads = None if self._closed else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, call)
