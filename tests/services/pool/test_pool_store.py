"""What a pool takes, keeps, refuses and counts, asked by clients of its server; what only Redis shows, on it itself."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError, RecordRefused
from rlep.core.types import AddReport
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.storage.codec import encode
from rlep.services.pool.storage.connection import Command, RetryingRedis, connect
from rlep.services.pool.storage.store import Meta, NewRecord, Store
from tests.services.conftest import MakeTrajectory, OpenClient, OpenPool
from tests.services.pool.pool_servers import reserved_address
from tests.waiting import wait_until


def test_a_trajectory_is_stored_once_however_often_it_comes(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    pool = open_client()
    one, two = trajectory("q0", [1, 2]), trajectory("q1", [1, 2])
    first = pool.add([one, two, one])
    assert (first.inserted, first.duplicates, first.refused, first.evicted) == (2, 1, (), 0)
    again = pool.add([two, one])
    assert (again.inserted, again.duplicates) == (0, 2)
    assert pool.stats().trajectories == 2
    assert pool.prompt_ids() == ["q0", "q1"]


def test_many_writers_with_the_same_trajectories_insert_each_once(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    writers, start = [open_client() for _ in range(4)], threading.Barrier(4)
    batch = [trajectory(f"q{i % 7}", [i]) for i in range(100)]

    def write(writer: PoolClient) -> AddReport:
        start.wait()
        return writer.add(batch)

    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(write, writers))
    assert sum(report.inserted for report in reports) == 100
    assert sum(report.duplicates for report in reports) == 300
    assert writers[0].stats().trajectories == 100


def test_what_cannot_be_stored_is_refused_by_name_and_the_rest_lands(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    pool = open_client()
    good = trajectory("q0", [1])
    wrong = trajectory("q0", [2], status="wrong")
    foreign = trajectory("q0", [3], tokenizer="another")
    nan = trajectory("q0", [4])
    assert nan.logprobs is not None
    nan.logprobs[0] = np.nan
    bare = replace(trajectory("q0", [5]), metadata=None)  # type: ignore[arg-type]
    report = pool.add([wrong, good, foreign, nan, bare])
    assert report.inserted == 1
    assert dict(report.refused) == {
        wrong.content_id: "its verdict is wrong; the pool holds only correct answers",
        foreign.content_id: "its token ids are of tokenizer another; the pool's is tokenizer-digest",
        nan.content_id: "1 of 1 log-probs are NaN or infinite",
        bare.content_id: "the metadata are not a mapping whose keys are texts",
    }


def test_a_pool_of_wrong_answers_takes_nothing_else(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    pool = open_client("wrong.failures", minimum=1)
    wrong, right, late = (trajectory("q0", [n], status=s) for n, s in enumerate(("wrong", "correct", "timeout")))
    report = pool.add([wrong, right, late])
    assert report.inserted == 1
    assert [reason for _, reason in report.refused] == [
        "its verdict is correct; the pool holds only wrong answers",
        "its verdict is timeout; the pool holds only wrong answers",
    ]
    sample = pool.sample(["q0"], 3, seed=0, step=0)
    assert [member.content_id for member in sample.trajectories()["q0"]] == [wrong.content_id]


def test_a_record_comes_back_as_it_was_or_not_at_all(
    open_client: OpenClient, open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool, stored = open_client(), trajectory("q0", [5, 6, 7])
    pool.add([stored])
    found = pool.get(stored.content_id, "q0")
    assert found is not None
    assert found.tokens.tolist() == [5, 6, 7]
    assert found.logprobs is not None
    assert found.logprobs.tolist() == [-0.5, -0.5, -0.5]
    assert (found.verdict, found.provenance, found.metadata) == (
        stored.verdict,
        stored.provenance,
        {"source": "test"},
    )
    assert pool.get("0" * 32, "q0") is None
    with pytest.raises(RecordRefused, match="32 hex digits"):
        pool.get("xyz", "q0")
    open_pool().add_entries([NewRecord("q0", b"\1" * 16, "p@1\nm@1", encode(stored))])
    with pytest.raises(
        RecordRefused, match=f"trajectory {'01' * 16} of prompt q0: the stored tokens have id {stored.content_id}"
    ):
        pool.get("01" * 16, "q0")


def test_over_the_cap_the_smallest_content_ids_stay_in_any_order_of_arrival(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    batch = [trajectory("q0", [i]) for i in range(20)]
    wanted = sorted(t.content_id for t in batch)[:5]
    for order in ("forth", "back", "single"):
        pool = open_client(f"cap-{order}", cap=5)
        if order == "single":
            reports = [pool.add([t]) for t in batch[7:] + batch[:7] + batch]
        else:
            reports = [pool.add(batch if order == "forth" else batch[::-1])]
        assert pool.content_ids("q0") == wanted
        assert pool.stats().trajectories == 5
        assert sum(report.inserted - report.evicted for report in reports) == 5
    assert {reason for report in reports for _, reason in report.refused} == {"its prompt has 5 already"}


def test_removed_ones_may_come_again_and_quarantined_ones_may_not(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    pool = open_client()
    one, two = trajectory("q0", [1]), trajectory("q0", [2])
    pool.add([one, two])
    assert pool.remove("q0", [one.content_id, "0" * 32]) == 1
    assert pool.remove("q0", [two.content_id], quarantine=True) == 1
    assert pool.prompt_ids() == []
    assert pool.stats().trajectories == pool.stats().bytes == 0
    report = pool.add([one, two])
    assert report.inserted == 1
    assert report.refused == ((two.content_id, "quarantined: it did not pass a later verification"),)


def test_a_newer_incarnation_of_a_writer_shuts_the_older_one_out(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    old = open_client(writer="run", writer_epoch=1)
    old.add([trajectory("q0", [1])])
    other = open_client(writer="another run", writer_epoch=0)
    new = open_client(writer="run", writer_epoch=2)
    assert new.add([trajectory("q0", [3])]).inserted == 1
    for older in (old, open_client(writer="run", writer_epoch=1)):
        with pytest.raises(PoolError, match=r"newer incarnation.*epoch 2"):
            older.add([trajectory("q0", [2])])
    assert other.add([trajectory("q0", [4])]).inserted == 1
    assert open_client().add([trajectory("q0", [5])]).inserted == 1


def test_a_sealed_pool_takes_nothing_and_keeps_its_digest(
    open_client: OpenClient, open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool, before, beneath = open_client(), open_client(), open_pool()
    one, two = trajectory("q0", [1]), trajectory("q1", [2])
    pool.add([two, one])
    digest = pool.seal()
    assert digest == pool.seal() == pool.digest() == pool.stats().sealed == open_pool(read_only=True).sealed
    assert before.stats().sealed == digest
    for writer in (pool, before, open_client(writer_epoch=3), beneath):
        for change in (
            lambda p: p.add([trajectory("q0", [3])]),
            lambda p: p.remove("q0", [one.content_id]),
        ):
            with pytest.raises(PoolError, match="sealed"):
                change(writer)
    assert pool.stats().trajectories == 2


def test_a_digest_names_the_set_and_nothing_else(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    batch = [trajectory(f"q{i % 3}", [i]) for i in range(10)]
    forth, back = open_client("forth"), open_client("back")
    forth.add(batch)
    for t in reversed(batch):
        back.add([t])
    assert forth.digest() == back.digest()
    back.remove("q0", [batch[0].content_id])
    assert forth.digest() != back.digest()
    back.add([batch[0]])
    assert forth.digest() == back.digest()


def test_a_sealed_pool_whose_content_is_not_its_digest_is_refused(
    open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool = open_pool("tampered")
    pool.add([trajectory("q0", [1]), trajectory("q0", [2])])
    pool.seal()
    (key,) = pool._link.client.keys("rlep:{tampered/*}:q:q0")
    pool._link.client.hdel(key, bytes.fromhex(pool.content_ids("q0")[0]))
    with pytest.raises(PoolError, match="was sealed with digest"):
        open_pool("tampered")


def test_a_reader_never_writes_and_needs_a_pool(open_pool: OpenPool, trajectory: MakeTrajectory) -> None:
    with pytest.raises(PoolError, match="there is no pool nowhere"):
        open_pool("nowhere", read_only=True)
    writer = open_pool("shared")
    reader = open_pool("shared", read_only=True)
    for change in (
        lambda: reader.add([trajectory()]),
        lambda: reader.remove("q0", []),
        reader.seal,
    ):
        with pytest.raises(PoolError, match="read-only"):
            change()
    writer.add([trajectory("q0", [1]), trajectory("q0", [2])])
    assert reader.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cap": 1, "minimum": 2}, "minimum = 2, cap = 1"),
        ({"minimum": 0}, "minimum = 0"),
        ({"writer_epoch": -1}, "writer_epoch = -1"),
        ({"tokenizer": None}, "needs tokenizer_digest"),
        ({"name": "a b"}, "pool name 'a b'"),
        ({"name": "a}b"}, "pool name"),
    ],
)
def test_options_that_cannot_work_are_refused(open_pool: OpenPool, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_pool(**options)


def test_statistics_count_questions_bytes_policies_and_verifiers(
    open_client: OpenClient, open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool = open_client()
    pool.add([trajectory("q0", [1], policy_version=1), trajectory("q0", [2], verifier_version="2")])
    pool.add([trajectory("q1", [3])] + [trajectory("q2", [i]) for i in range(9)])
    stats = pool.stats()
    assert stats.questions_with == {1: 3, 2: 2, 4: 1, 8: 1}
    assert stats.trajectories == 12
    assert stats.by_policy == {"policy@1": 1, "policy@3": 11}
    assert stats.by_verifier == {"math@1": 11, "math@2": 1}
    client = open_pool()._link.client
    stored = [value for key in client.keys(f"rlep:{{{pool.name}/*}}:q:*") for value in client.hvals(key)]
    assert stats.bytes == sum(map(len, stored))


def test_two_pools_of_one_redis_know_nothing_of_each_other(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    one, two = open_client("one"), open_client("two")
    one.add([trajectory("q0", [1]), trajectory("q0", [2])])
    assert two.stats().trajectories == 0
    assert two.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [0]
    assert {"one", "two"} <= set(one.names())


def test_a_flushed_script_cache_is_no_failure(
    open_pool: OpenPool, redis_server: EmbeddedRedis, trajectory: MakeTrajectory
) -> None:
    pool = open_pool()
    pool.add([trajectory("q0", [1])])
    pool._link.client.script_flush()
    report = pool.add([trajectory("q0", [2])])
    assert (report.inserted, report.duplicates) == (1, 0)


def test_a_reader_notices_another_history_of_the_same_length(open_pool: OpenPool, trajectory: MakeTrajectory) -> None:
    # A crash may take changes that a reader has seen but no writer was told of; others take their numbers then.
    pool, reader = open_pool("cut"), open_pool("cut", read_only=True)
    pool.add([trajectory("q0", [1]), trajectory("q1", [2])])
    assert len(reader.content_ids("q0")) == 1
    client = pool._link.client
    client.delete(*client.keys("rlep:{cut/*}:*"))
    other = trajectory("q0", [3])
    pool.add([other])
    assert reader.prompt_ids() == ["q0"]
    assert reader.content_ids("q0") == [other.content_id]


def test_a_reader_that_missed_more_changes_than_are_kept_reads_all_anew(
    open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool, reader = open_pool("long"), open_pool("long", read_only=True)
    pool.add([trajectory("q0", [0])])
    assert reader.prompt_ids() == ["q0"]
    for i in range(1, 515):  # 512 are kept
        pool.add([trajectory(f"q{i % 9}", [i])])
    assert reader.digest() == pool.digest()
    assert sum(len(reader.content_ids(f"q{i}")) for i in range(9)) == 515


class KilledLink(RetryingRedis):
    """Its process is killed before its second write."""

    writes = 0

    def write(self, what: str, commands: Sequence[Command], *, atomic: bool = False) -> list[Any]:
        self.writes += 1
        if self.writes == 2:
            raise KeyboardInterrupt
        return super().write(what, commands, atomic=atomic)


def test_a_pool_whose_maker_was_killed_is_made_and_listed_by_the_next(
    redis_server: EmbeddedRedis, open_pool: OpenPool
) -> None:
    client = connect(redis_server.url, password_file=redis_server.password_file)
    with pytest.raises(KeyboardInterrupt):
        Store(KilledLink(client), "half-made").create(Meta("tokenizer-digest", 7, None))
    client.close()
    assert "half-made" in open_pool("half-made").store.names()


def test_a_redis_cluster_is_refused(any_binary: Path, tmp_path: Path) -> None:
    settings = ["--port", "0", "--unixsocket", "redis.sock", "--cluster-enabled", "yes"]
    with reserved_address() as address:
        settings[1] = address.partition(":")[2]
        with subprocess.Popen([any_binary, *settings], cwd=tmp_path, stdout=subprocess.DEVNULL) as server:
            try:
                wait_until((tmp_path / "redis.sock").exists, "the server's socket")
                with pytest.raises(PoolError, match="is a cluster; a pool lies on one server"):
                    connect(f"redis://{address}")
            finally:
                server.kill()
