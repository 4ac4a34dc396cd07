"""What the holder of one token can hold up on a pool server: its own calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc import open_calls
from rlep.services.pool.rpc.open_calls import CALLS_A_TOKEN
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.rpc.wire import SERVICE
from tests.services.pool.pool_servers import serving, stub, token_file
from tests.services.pool.test_pool_rpc_admission import METHODS, code_of, headers_only

READ, ADMIN = ((("authorization", f"Bearer {token}"),) for token in ("read-token", "admin-token"))
EXHAUSTED, CANCELLED = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    tokens = token_file(tmp_path_factory.mktemp("tokens"), "read read-token\nadmin-token\n")
    with serving(one_redis, token_file=tokens) as running:
        yield running


@pytest.fixture
def impatient(server: PoolServer, monkeypatch: pytest.MonkeyPatch) -> PoolServer:
    """The server, which waits for a client for 1 s, and 1 s more for each 16 MiB."""
    monkeypatch.setattr(open_calls, "SILENCE_S", 1.0)
    monkeypatch.setattr(open_calls, "BYTES_A_SECOND", 1 << 24)
    return server


def names_of(server: PoolServer, token: tuple[tuple[str, str], ...], timeout: float = 10) -> list[str]:
    with stub(server.address) as bare:
        return list(bare.ListPools(pb.ListRequest(), timeout=timeout, metadata=token).names)


@pytest.mark.parametrize("method", METHODS)
def test_silent_calls_of_one_token_leave_the_others_theirs(server: PoolServer, method: str) -> None:
    with headers_only(server.address, method, 140, metadata=READ) as calls:
        over = [call for call in calls[CALLS_A_TOKEN:] if code_of(call) is EXHAUSTED]
        assert len(over) >= 140 - CALLS_A_TOKEN - 1
        names_of(server, ADMIN)
        assert {over[-1].details()} <= {
            f"token {over[-1].details().split()[1]} has 32 calls open at this server, the most: ask again, or use more "
            "tokens",
            "Concurrent RPC limit exceeded!",
        }
    names_of(server, READ)  # and when they have ended its own


@pytest.mark.parametrize("method", METHODS)
def test_a_call_that_sends_nothing_is_ended(impatient: PoolServer, method: str) -> None:
    with headers_only(impatient.address, method, 1, timeout=300, metadata=READ) as (call,):
        assert code_of(call) is CANCELLED


def test_a_stream_of_a_frame_every_while_is_ended(impatient: PoolServer) -> None:
    """Each frame comes in time, and all of them take too long for what they carry."""
    sent: list[int] = []

    def dripping() -> Iterator[bytes]:
        while len(sent) < 300:
            sent.append(1)
            yield pb.AddFrame(pool="dripped", total=512).SerializeToString()
            time.sleep(0.2)

    with grpc.insecure_channel(impatient.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Add")(dripping(), timeout=300, metadata=ADMIN)
        assert code_of(call) is CANCELLED
    assert len(sent) < 100


@pytest.mark.parametrize("verb", ["Sample", "Export"])
def test_replies_that_nobody_reads_are_given_up(
    impatient: PoolServer, verb: str, trajectory: Callable[..., Trajectory]
) -> None:
    """8 MiB a call, more than the buffers of a connection take, to clients that read none of them."""
    pool = f"unread-{verb}"
    numbers = np.random.default_rng(0).integers(0, 1 << 31, 1 << 18).tolist()
    with PoolClient(impatient.address, token="admin-token", pool=pool) as client:
        client.add([trajectory(f"q{i}", [i, *numbers]) for i in range(8)])
        ids = client.prompt_ids()
    requests: dict[str, pb.SampleRequest | pb.ExportRequest] = {
        "Sample": pb.SampleRequest(pool=pool, prompt_ids=ids, count=1, minimum=1),
        "Export": pb.ExportRequest(pool=pool),
    }
    request = requests[verb].SerializeToString()
    with grpc.insecure_channel(impatient.address) as channel:
        method = channel.unary_stream(f"/{SERVICE}/{verb}")
        calls = [method(request, timeout=300, metadata=READ) for _ in range(CALLS_A_TOKEN)]
        for call in calls:
            call.initial_metadata()  # it comes with the first frame
        with PoolClient(impatient.address, token="read-token", deadline=60) as client:
            assert pool in client.names()


def test_two_hundred_clients_of_one_token_all_get_their_draws(
    server: PoolServer, trajectory: Callable[..., Trajectory]
) -> None:
    with PoolClient(server.address, token="admin-token", pool="shared") as client:
        client.add([trajectory("q0") for _ in range(8)])
    every = threading.Barrier(200)

    def draws(number: int) -> int:
        with PoolClient(server.address, token="read-token", pool="shared", deadline=120) as client:
            every.wait(60)
            return sum(int(client.sample(["q0"], 4, seed=number, step=step).counts.sum()) for step in range(3))

    with ThreadPoolExecutor(200) as threads:
        assert set(threads.map(draws, range(200))) == {12}
