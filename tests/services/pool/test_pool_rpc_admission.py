"""What callers without a token can hold up on a pool server: nothing that others wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.rpc.wire import SERVICE
from tests.services.pool.pool_servers import serving, stub, token_file

AUTHORIZED = (("authorization", "Bearer admin-token"),)
HEALTH, REFLECTION = "/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
METHODS = [f"/{SERVICE}/{name}" for name in pb.DESCRIPTOR.services_by_name["Pool"].methods_by_name]


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    with serving(one_redis, token_file=token_file(tmp_path_factory.mktemp("tokens"), "admin-token\n")) as running:
        yield running


@contextmanager
def headers_only(
    address: str, method: str, count: int, *, timeout: float | None = 60, metadata: tuple[tuple[str, str], ...] = ()
) -> Iterator[list[grpc.Call]]:
    """Calls that send their headers and then nothing, until the block ends."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(method)
        calls = [call(nothing(), timeout=timeout, metadata=metadata) for _ in range(count)]
        try:
            yield calls
        finally:
            over.set()
            for one in calls:
                one.cancel()


def code_of(call: grpc.Call) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code()


def check_works(server: PoolServer) -> None:
    """The pool answers who has a token, and health everybody, within what a probe waits."""
    with stub(server.address) as bare:
        assert list(bare.ListPools(pb.ListRequest(), timeout=10, metadata=AUTHORIZED).names) == []
    with grpc.insecure_channel(server.address) as channel:
        for service in ("", SERVICE):
            reply = HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=10)
            assert reply.status == HealthCheckResponse.SERVING


@pytest.mark.parametrize("method", METHODS)
def test_calls_without_a_token_end_before_they_send_anything(server: PoolServer, method: str) -> None:
    with headers_only(server.address, method, 40) as calls:
        assert {code_of(call) for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
        check_works(server)


@pytest.mark.parametrize("method", [f"{HEALTH}Check", f"{HEALTH}Watch", REFLECTION])
def test_open_calls_that_send_nothing_do_not_hold_up_the_pool_or_health(server: PoolServer, method: str) -> None:
    with headers_only(server.address, method, 40):
        check_works(server)


def test_open_calls_that_send_nothing_are_ended(server: PoolServer) -> None:
    with headers_only(server.address, f"{HEALTH}Check", 3, timeout=50) as calls:
        assert {code_of(call) for call in calls} == {grpc.StatusCode.CANCELLED}


def test_a_call_without_a_deadline_is_refused_before_it_sends_anything(server: PoolServer) -> None:
    with headers_only(server.address, f"/{SERVICE}/Stats", 1, timeout=None, metadata=AUTHORIZED) as (call,):
        assert code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Stats", "Sample", "Remove"])
def test_a_request_is_parsed_only_for_who_has_a_token(server: PoolServer, method: str) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/{method}")
        assert code_of(call(b"\xff" * 9, timeout=30)) is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            list(call(b"\xff" * 9, timeout=30, metadata=AUTHORIZED))
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the request is not a message of this call",
    )


def test_requests_are_small_but_those_of_a_sample(server: PoolServer) -> None:
    way = {"timeout": 30, "metadata": AUTHORIZED}
    with stub(server.address) as bare:
        with pytest.raises(grpc.RpcError) as caught:
            bare.Stats(pb.PoolRequest(pool="p" * (1 << 20)), **way)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "a request of 1048580 bytes: at most 1048576 in this call",
        )
        (frame,) = bare.Sample(pb.SampleRequest(pool="absent", prompt_ids=["p" * 128] * 16_384, count=1), **way)
        assert len(frame.counts) == 4 * 16_384  # 2 MiB arrived


def test_a_call_of_an_unknown_method_is_unimplemented(server: PoolServer) -> None:
    with headers_only(server.address, f"/{SERVICE}/Drop", 1) as (call,):
        assert code_of(call) is grpc.StatusCode.UNIMPLEMENTED
