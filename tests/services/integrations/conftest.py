"""Pools on a server of their own process."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rlep import PoolClient
from tests.services.integrations.pool_process import pool_process

OpenPool = Callable[..., PoolClient]


@pytest.fixture(autouse=True)
def _hook_is_experimental(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # TRL's warning would be an error here


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server for the tests of a file."""
    with pool_process(tmp_path_factory.mktemp("pools")) as address:
        yield address


@pytest.fixture
def pool_of(served: str, request: pytest.FixtureRequest) -> Iterator[OpenPool]:
    """``pool_of(name=…, **options)``: a client of the test's own pool, or of another."""
    default = f"test-{zlib.crc32(request.node.nodeid.encode()):x}"
    with ExitStack() as clients:

        def open_it(name: str = default, **options: Any) -> PoolClient:
            return clients.enter_context(PoolClient(served, pool=name, **options))

        yield open_it
