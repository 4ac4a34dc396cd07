"""The verbs of the pool over gRPC do what they do on the pool itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import grpc
import numpy as np
import pytest

from rlep import AsyncPoolClient, PoolClient
from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.storage.codec import encode
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.storage.scan import Held
from rlep.services.pool.storage.store import Store, Wanted
from rlep.services.pool.values import PoolOptions
from tests.services.pool.pool_servers import serving, stub

MakeTrajectory = Callable[..., Trajectory]
Connect = Callable[..., PoolClient]
TOKENIZER = "tokenizer-digest"


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis) -> Iterator[PoolServer]:
    with serving(one_redis) as running:
        yield running


@pytest.fixture
def connected(server: PoolServer, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """``connected(pool=…, **options)``: a client of this test's own pool unless it names one."""
    clients: list[PoolClient] = []

    def connect(pool: str = request.node.name[:64].replace("[", "-").replace("]", ""), **options: object) -> PoolClient:
        clients.append(PoolClient(server.address, pool=pool, **options))  # type: ignore[arg-type]
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def opened(redis: EmbeddedRedis, name: str, **options: object) -> Pool:
    """The pool itself, without a server."""
    return Pool.open(
        redis.url,
        name,
        tokenizer_digest=TOKENIZER,
        password_file=redis.password_file,
        options=PoolOptions(**options),  # type: ignore[arg-type]
    )


def columns_of(sample: Sample) -> list[object]:
    """Everything in a sample, as values that compare by their bits."""
    arrays = (sample.counts, sample.offsets, sample.tokens, sample.logprobs, sample.finished)
    return [sample.prompt_ids, sample.ids, sample.details, *((a.dtype, a.tobytes()) for a in arrays)]


def test_a_pool_that_nobody_has_added_to_is_empty(connected: Connect, trajectory: MakeTrajectory) -> None:
    client = connected()
    assert client.add([]).inserted == 0
    assert client.add([trajectory(tokenizer="x", tokens=[])]).refused == (
        (trajectory(tokens=[]).content_id, "response has 0 tokens; a record holds 1 to 1048576"),
    )
    assert client.sample(["q0"], 2, seed=0, step=0).below_minimum == ("q0",)
    assert (client.stats().trajectories, client.prompt_ids(), list(client.export())) == (0, [], [])
    assert client._pool not in client.names()
    with pytest.raises(PoolError, match="there is no pool test_a_pool_that_nobody"):
        client.remove("q0", [])
    reader = connected()  # it was asked before anybody has added to it
    assert client.add([trajectory("q0", [1]), trajectory("q0", [2])]).inserted == 2
    assert reader.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]


@pytest.fixture
def filled(connected: Connect, trajectory: MakeTrajectory) -> PoolClient:
    """200 prompts with 0 to 4 answers of 1 to 7 tokens; some with float32 log-probs, some without any."""
    client = connected()
    batch = [trajectory(f"q{n:03}", [n, i, *range(n % 6)]) for n in range(200) for i in range(n % 5)]
    for at, one in enumerate(batch):
        if at % 7 == 0:
            object.__setattr__(one, "logprobs", None)
    assert connected(precision="float32").add(batch[:30]).inserted == 30
    assert client.add(batch[30:]).inserted == 370
    return client


PROMPTS = [f"q{n:03}" for n in range(200)]


def test_a_frame_holds_64_prompts_and_4_mib_at_most(filled: PoolClient, server: PoolServer) -> None:
    with stub(server.address) as bare:
        asked = pb.SampleRequest(pool=filled._pool, prompt_ids=PROMPTS, count=3, seed=0, step=0)
        frames = list(bare.Sample(asked, timeout=30))
    # Prompts give 0 0 2 3 3, over and over. 12 rounds (96) and 60 … 63: 5; 64, 12 rounds and 125 … 127: 5; and so on.
    assert [len(frame.ids) // 16 for frame in frames] == [101, 101, 102, 16]
    assert [len(frame.counts) for frame in frames] == [800, 0, 0, 0]


def test_a_frame_of_long_answers_is_divided(connected: Connect, server: PoolServer, trajectory: MakeTrajectory) -> None:
    client = connected(precision="float32")
    long = [trajectory("q", [i] * 400_000) for i in range(3)]  # 3.2 MB each, 1.6 of them as stored
    assert client.add(long).inserted == 3
    with stub(server.address) as bare:
        request = pb.SampleRequest(pool=client._pool, prompt_ids=["q"], count=3)
        frames = list(bare.Sample(request, timeout=30))
    assert [len(frame.ids) // 16 for frame in frames] == [2, 1]
    sample = client.sample(["q"], 3, seed=0, step=0)
    assert sorted(sample.tokens[sample.offsets[:-1]].tolist()) == [0, 1, 2]
    assert sorted(t.content_id for t in client.export()) == sorted(t.content_id for t in long)


def test_a_redraw_follows_where_a_drawn_record_was_removed(
    filled: PoolClient, one_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = columns_of(filled.sample(PROMPTS, 2, seed=1, step=1))
    fetch, gone = Store.fetch, iter([False, True])

    def fetch_less(store: Store, wanted: Wanted) -> list[bytes | None]:
        found = fetch(store, wanted)
        return [*found[:-1], None] if next(gone, False) else found

    monkeypatch.setattr(Store, "fetch", fetch_less)
    with serving(one_redis) as fresh, PoolClient(fresh.address, pool=filled._pool) as client:
        assert columns_of(client.sample(PROMPTS, 2, seed=1, step=1)) == wanted
    assert next(gone, "used up") == "used up"


def test_what_cannot_be_sampled_is_refused_with_the_reason(filled: PoolClient) -> None:
    with pytest.raises(ConfigError, match="count = -1"):
        filled.sample(PROMPTS, -1, seed=0, step=0)
    assert filled.sample(PROMPTS, 5243, seed=0, step=0, minimum=1).counts.tolist() == [n % 5 for n in range(200)]
    with pytest.raises(ConfigError, match="seed 9223372036854775808"):
        filled.sample(PROMPTS, 1, seed=1 << 63, step=0)


def test_a_seal_by_somebody_else_is_seen(
    connected: Connect, one_redis: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    client = connected()
    client.add([trajectory("q0", [1])])
    assert client.stats().sealed is None
    with opened(one_redis, client._pool) as pool:
        assert pool.seal() == client.stats().sealed


def test_export_gives_everything_by_prompts_and_goes_on_where_told(
    connected: Connect, trajectory: MakeTrajectory
) -> None:
    client = connected()
    batch = [trajectory(f"q{n:03}", [n, i]) for n in range(800) for i in range(1 + n % 2)]
    assert client.add(batch[::-1]).inserted == 1200
    found = list(client.export())
    assert [t.prompt_id for t in found] == [t.prompt_id for t in batch]
    assert {t.content_id for t in found} == {t.content_id for t in batch}
    page, following = client.export_page("")
    assert len(page) == 1024  # 341 pairs of questions with 3 records, and the one of q682
    assert following is not None
    assert [t.content_id for t in client.export_page(following)[0]] == [t.content_id for t in found[1024:]]
    assert [t.prompt_id for t in client.export(after="q797")] == ["q798", "q799", "q799"]
    assert client.export_page("q799") == ([], None)


def test_records_come_in_pages_that_end_anywhere_each_once(
    connected: Connect, server: PoolServer, trajectory: MakeTrajectory
) -> None:
    client = connected()
    made = [trajectory(f"q{n}", [n, i]) for n in range(3) for i in range(5)]
    client.add(made)
    for one in made[::4]:
        client.remove(one.prompt_id, [one.content_id], quarantine=True)
    aside = {one.content_id for one in made[::4]}
    every = sorted((one.prompt_id, one.content_id in aside, one.content_id) for one in made)

    def places(held: Iterable[Held]) -> list[tuple[str, bool, str]]:
        return [(one.prompt_id, one.quarantined, one.content_id.hex()) for one in held]

    for limit in (1, 2, 4, 14, 15):
        with stub(server.address) as bare:
            pages, request = (
                list[list[tuple[str, bool, str]]](),
                pb.ExportRequest(pool=client.name, quarantined=True, limit=limit),
            )
            while not pages or request.after:
                (frame,) = bare.Export(request, timeout=30)
                pages.append([(r.prompt_id, r.quarantined, r.content_id.hex()) for r in frame.records])
                request.after = frame.next
        assert [place for page in pages for place in page] == every
        assert all(len(page) == limit for page in pages[:-1])
    assert places(client.records(quarantined=True, limit=7)) == every[:7]
    assert places(client.records(["q2", "q0", "none"])) == [
        place for place in every if place[0] != "q1" and not place[1]
    ]
    assert places(client.records(quarantined=True, after="q1")) == [place for place in every if place[0] == "q2"]
    assert places(client.records([])) == []
    names = [f"a{n}" for n in range(4096)]  # more than a call takes, none of which there is
    assert places(client.records([*names, "q0"])) == [place for place in every if place[0] == "q0" and not place[1]]
    with (
        stub(server.address) as bare,
        pytest.raises(grpc.RpcError, match="an export of 4097 prompts: name at most 4096"),
    ):
        list(bare.Export(pb.ExportRequest(pool=client.name, prompt_ids=[*names, "q0"]), timeout=30))


def test_a_page_of_long_records_ends_at_32_mib(connected: Connect, trajectory: MakeTrajectory) -> None:
    client, noise = connected(precision="float32"), np.random.default_rng(5)
    long = [trajectory("q", noise.integers(1 << 30, size=1_000_000).tolist()) for _ in range(6)]  # 7.8 MB each
    assert client.add(long).inserted == 6
    page, following = client.export_page("")
    assert (len(page), following) == (5, f"q/q{sorted(t.content_id for t in long)[4]}")
    assert sorted(t.content_id for t in client.export()) == sorted(t.content_id for t in long)


def test_records_are_set_aside_by_whoever_may_remove_and_may_come_again_when_forgotten(
    connected: Connect, trajectory: MakeTrajectory
) -> None:
    client = connected()
    held, new, wrong = trajectory("q0", [1]), trajectory("q0", [2]), trajectory("q1", [3], status="wrong")
    client.add([held])
    foreign = trajectory("q2", [4], tokenizer="another")
    records = [(one.prompt_id, encode(one)) for one in (held, new, wrong, foreign)]
    for inserted in (3, 0):  # may be repeated
        report = client.add_records([*records, ("q3", b"no record")], quarantined=True)
        assert (report.inserted, report.duplicates) == (inserted, 3 - inserted)
        assert [content_id for content_id, _ in report.refused] == ["", foreign.content_id]
    assert client.prompt_ids() == []
    assert client.contents(quarantined=True) == {
        "q0": sorted([held.content_id, new.content_id]),
        "q1": [wrong.content_id],
    }
    assert client.remove("q0", [held.content_id, "0" * 32], quarantined=True) == 1
    assert client.add([held, new]).inserted == 1


def test_a_listing_comes_in_pages(filled: PoolClient, server: PoolServer) -> None:
    with stub(server.address) as bare:
        pages, after = [], ""
        while True:
            reply = bare.ListPrompts(pb.ListRequest(pool=filled._pool, after=after, limit=70), timeout=30)
            pages.append(list(reply.names))
            if not (after := reply.next):
                break
    assert [len(page) for page in pages] == [70, 70, 20]
    assert [name for page in pages for name in page] == filled.prompt_ids()


def test_a_repeated_insert_gets_the_first_answer_from_another_server_too(
    connected: Connect, one_redis: EmbeddedRedis, server: PoolServer, trajectory: MakeTrajectory
) -> None:
    pool = connected()._pool
    records = [pb.Record(prompt_id="q0", record=encode(trajectory("q0", [i]))) for i in range(3)]
    first = pb.AddFrame(pool=pool, call="0123456789abcdef", records=records[:2], total=3)
    frames = [first, pb.AddFrame(records=records[2:])]
    replies = []
    with serving(one_redis) as other:
        for address in (server.address, server.address, other.address):
            with stub(address) as bare:
                replies.append(bare.Add(iter(frames), timeout=30))
    assert [(reply.inserted, reply.duplicates) for reply in replies] == [(3, 0)] * 3
    assert connected().stats().trajectories == 3


def test_an_insert_that_was_cut_off_stores_nothing_and_may_come_again(
    connected: Connect, server: PoolServer, trajectory: MakeTrajectory
) -> None:
    pool = connected()._pool
    records = [pb.Record(prompt_id="q0", record=encode(trajectory("q0", [i]))) for i in range(3)]
    first = pb.AddFrame(pool=pool, call="0123456789abcdef", records=records[:2], total=3)
    with stub(server.address) as bare:
        with pytest.raises(grpc.RpcError, match="only 2 of 3 records arrived, none is stored") as caught:
            bare.Add(iter([first]), timeout=30)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        with pytest.raises(grpc.RpcError, match="an insert of 4 records whose first frame says 3"):
            bare.Add(iter([first, pb.AddFrame(records=records[1:])]), timeout=30)
        assert pool not in connected().names()
        assert bare.Add(iter([first, pb.AddFrame(records=records[2:])]), timeout=30).inserted == 3


async def test_the_verbs_can_be_awaited(server: PoolServer, trajectory: MakeTrajectory) -> None:
    async with AsyncPoolClient(server.address, pool="awaited") as client:
        batch = [trajectory(f"q{n}", [n, i]) for n in range(3) for i in range(2)]
        assert (await client.add(batch)).inserted == 6
        sample = await client.sample(["q0", "q1"], 1, seed=0, step=0)
        with PoolClient(server.address, pool="awaited") as blocking:
            assert columns_of(sample) == columns_of(blocking.sample(["q0", "q1"], 1, seed=0, step=0))
        assert [t.prompt_id async for t in client.export(after="q0")] == ["q1", "q1", "q2", "q2"]
        ids = await client.content_ids("q2")
        assert await client.remove("q2", ids[:1]) == 1
        found = await client.get(ids[1], "q2")
        assert found is not None
        assert found.content_id == ids[1]
        assert await client.prompt_ids() == ["q0", "q1", "q2"]
        assert "awaited" in await client.names()
        digest = await client.digest()
        assert await client.seal() == digest
        assert (await client.stats()).sealed == digest
        with pytest.raises(PoolError, match="is sealed"):
            await client.add(batch)


async def test_a_closed_client_says_so_of_awaited_calls_too(server: PoolServer, trajectory: MakeTrajectory) -> None:
    client = AsyncPoolClient(server.address, pool="closed")
    assert (await client.stats()).trajectories == 0
    await client.close()
    for what, call in (("counting", client.stats), ("adding", lambda: client.add([trajectory()]))):
        with pytest.raises(PoolError, match=f"{what} at pool server {server.address}: this client was closed"):
            await call()
    with pytest.raises(PoolError, match="this client was closed"):
        [each async for each in client.export()]
    await client.close()
