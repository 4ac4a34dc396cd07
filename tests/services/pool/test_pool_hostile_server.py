"""What a pool server that is anybody's can make of its clients: an error with its address, soon."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from rlep import PoolClient
from rlep.core.errors import PoolError
from rlep.services.pool.rpc import client as client_module
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.proto.pool_pb2_grpc import PoolServicer, add_PoolServicer_to_server

Use = Callable[[PoolClient], object]
ONE, TWO = struct.pack("<i", 1), struct.pack("<i", 2)


@contextmanager
def hostile(verb: str, reply: Callable[[Any], Any]) -> Iterator[PoolClient]:
    """A client of a server that answers ``verb`` so."""

    class Odd(PoolServicer):
        pass

    setattr(Odd, verb, lambda _self, request, _context: reply(request))
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        add_PoolServicer_to_server(Odd(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with PoolClient(f"127.0.0.1:{port}", pool="p", deadline=120) as client:
                yield client
        finally:
            server.stop(0).wait()


def following(after: str) -> str:
    return f"{int(after or 0) + 1:06}"


def drawn(client: PoolClient) -> object:
    return client.sample(["q"], 4, seed=0, step=0)


ENDLESS: dict[str, tuple[str, Callable[[Any], Any], Use]] = {
    "pools that go on and on": (
        "ListPools",
        lambda asked: pb.ListReply(names=[following(asked.after)], next=following(asked.after)),
        PoolClient.names,
    ),
    "prompts that go on and on": (
        "ListPrompts",
        lambda asked: pb.ListReply(names=[following(asked.after)], next=following(asked.after)),
        PoolClient.contents,
    ),
    "quarantined contents that go on and on": (
        "Contents",
        lambda asked: pb.ContentsReply(
            prompt_ids=[following(asked.after)], counts=ONE, ids=bytes(16), next=following(asked.after)
        ),
        lambda client: client.contents(quarantined=True),
    ),
    "frames of a page": ("Export", lambda _: itertools.repeat(pb.ExportFrame()), lambda client: list(client.records())),
    "frames of a sample": ("Sample", lambda _: itertools.repeat(pb.SampleFrame(counts=ONE, available=ONE)), drawn),
    "empty frames of a sample": (
        "Sample",
        lambda _: itertools.chain([pb.SampleFrame(counts=ONE, available=ONE)], itertools.repeat(pb.SampleFrame())),
        drawn,
    ),
}
ODD: dict[str, tuple[str, Callable[[Any], Any], Use]] = {
    "the same page again": ("ListPools", lambda _: pb.ListReply(names=["a"], next="a"), PoolClient.names),
    "an empty page before another": ("ListPools", lambda _: pb.ListReply(next="a"), PoolClient.names),
    "a page that skips": ("ListPools", lambda _: pb.ListReply(names=["a"], next="b"), PoolClient.names),
    "a huge name": ("ListPools", lambda _: pb.ListReply(names=["a" * 3_000_000]), PoolClient.names),
    "a name that steers the terminal": (
        "ListPrompts",
        lambda _: pb.ListReply(names=["\x1b[2J"]),
        PoolClient.prompt_ids,
    ),
    "half a count": ("Sample", lambda _: [pb.SampleFrame(counts=b"123", available=ONE)], drawn),
    "half a number of trajectories": ("Sample", lambda _: [pb.SampleFrame(counts=bytes(4), available=b"1")], drawn),
    "a negative count": ("Sample", lambda _: [pb.SampleFrame(counts=b"\xff" * 4, available=ONE)], drawn),
    "no frame of a sample": ("Sample", lambda _: [], drawn),
    "no frame of a page": ("Export", lambda _: [], lambda client: list(client.records())),
    "a page that goes on nowhere": (
        "Export",
        lambda _: [pb.ExportFrame(next="a")],
        lambda client: list(client.records()),
    ),
    "a record of another question": (
        "Export",
        lambda _: [pb.ExportFrame(records=[pb.Record(prompt_id="r", record=b"1", content_id=bytes(16))])],
        lambda client: list(client.records(["q"])),
    ),
    "contents of another question": (
        "Contents",
        lambda _: pb.ContentsReply(prompt_ids=["r"], counts=ONE, ids=bytes(16)),
        lambda client: client.contents(["q"]),
    ),
    "half a content id": (
        "ListTrajectories",
        lambda _: pb.ListTrajectoriesReply(ids=b"1"),
        lambda client: client.content_ids("q"),
    ),
    "a digest that is none": ("Digest", lambda _: pb.DigestReply(digest="\x1b[2J"), PoolClient.digest),
    "statistics that are none": ("Stats", lambda _: pb.StatsReply(json="[" * 100_000), PoolClient.stats),
    "half of the statistics": ("Open", lambda _: pb.OpenReply(json='{"bytes": 1e999}'), PoolClient.open),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_reply_without_an_end_is_given_up(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_POOLS", 100)
    monkeypatch.setattr(client_module, "MAX_PROMPTS", 100)
    verb, reply, use = ENDLESS[case]
    with hostile(verb, reply) as client, pytest.raises(PoolError, match=r" at pool server 127\.0\.0\.1:[0-9]+: "):
        use(client)


@pytest.mark.parametrize("case", ODD)
def test_an_odd_reply_is_an_error_with_the_servers_address(case: str) -> None:
    verb, reply, use = ODD[case]
    with (
        hostile(verb, reply) as client,
        pytest.raises(PoolError, match=r" at pool server 127\.0\.0\.1:[0-9]+: ") as caught,
    ):
        use(client)
    assert len(str(caught.value)) < 2000
