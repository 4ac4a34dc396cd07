"""A token id beyond the vocabulary is refused at every door of a pool, and found in a pool that has it already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlep import PoolClient
from rlep.core.errors import RecordRefused
from rlep.engines.tokenizer import load_tokenizer
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.files.manifest import read_manifest
from rlep.services.pool.files.records import export_records, import_records
from rlep.services.pool.maintenance.check_records import check_records
from rlep.services.pool.rpc.server import PoolServer
from tests.services.conftest import TOKENIZER, MakeTrajectory, OpenClient, OpenPool
from tests.services.pool.pool_commands import MODEL, Commands
from tests.services.pool.pool_servers import serving, socket_in

REASON = "prompt q1: token id 99999 ≥ vocabulary 42"


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[PoolServer]:
    """A server of the same pools."""
    with serving(redis_server, listen=socket_in(redis_server)) as running:
        yield running


def test_the_next_writer_states_the_vocabulary_of_an_older_pool(
    open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    old, beyond = open_pool(), trajectory("q1", [99_999, 2])
    assert (old.vocabulary, old.add([beyond]).inserted) == (None, 1)
    assert open_pool(read_only=True, vocabulary=42).vocabulary == 42  # checked, but not recorded
    assert open_pool().vocabulary is None
    open_pool(vocabulary=42)
    assert [open_pool().vocabulary, open_pool(vocabulary=50).vocabulary, open_pool(vocabulary=40).vocabulary] == [
        42,
        42,  # whichever is smaller
        40,
    ]


def test_a_draw_refuses_a_record_beyond_the_vocabulary(
    open_pool: OpenPool, trajectory: MakeTrajectory, server: PoolServer
) -> None:
    old = open_pool(minimum=1)
    good, beyond = trajectory("q0", [41, 2, 2]), trajectory("q1", [7, 99_999])
    old.add([good, beyond, trajectory("q2", [7])])
    reading = open_pool(read_only=True, vocabulary=42)
    assert reading.sample(["q0"], 1, seed=0, step=0).ids == (good.content_id,)
    reason = f"trajectory {beyond.content_id} of {REASON}; rlep pool prune --damaged removes such records"
    with pytest.raises(RecordRefused, match=reason):
        reading.sample(["q0", "none", "q1", "q2"], 1, seed=0, step=0)
    open_pool(vocabulary=42)  # records it: a server, too, learns it
    with PoolClient(server.address, pool=old.name) as client, pytest.raises(RecordRefused, match=reason):
        client.sample(["q0", "none", "q1", "q2"], 1, seed=0, step=0)


def test_a_check_finds_token_ids_beyond_the_vocabulary_and_a_repair_removes_them(
    open_pool: OpenPool, open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    old = open_pool()
    good, beyond, aside = trajectory("q1", [41]), trajectory("q1", [99_999]), trajectory("q2", [42])
    old.add([good, beyond, aside])
    old.remove("q2", [aside.content_id], quarantine=True)
    looked_into = open_client()
    assert check_records(looked_into, repair=False).damaged == 0
    assert check_records(looked_into, repair=False, vocabulary=42).examples == [
        ("q1", beyond.content_id, "token id 99999 ≥ vocabulary 42"),
        ("q2", aside.content_id, "token id 42 ≥ vocabulary 42"),
    ]
    assert check_records(open_client(vocabulary=42), repair=True).removed == 2
    assert check_records(looked_into, repair=False).damaged == 0
    assert old.content_ids("q1") == [good.content_id]


def test_an_import_refuses_token_ids_beyond_the_vocabulary_and_an_export_states_it(
    open_client: OpenClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    old, twin = open_client(), open_client("twin-vocabulary", vocabulary=42)
    old.add([trajectory("q1", [99_999, 2]), trajectory("q2", [7])])
    assert export_records(old, tmp_path / "old").vocabulary is None
    assert "vocabulary" not in (tmp_path / "old" / "manifest.json").read_text()  # as older versions read it
    report = import_records(twin, tmp_path / "old")
    assert (report.inserted, dict(report.refused)) == (1, {REASON: 1})
    export_records(twin, tmp_path / "new")
    assert read_manifest(tmp_path / "new").vocabulary == 42


def test_a_client_states_the_vocabulary_of_a_pool_that_has_none(server: PoolServer, trajectory: MakeTrajectory) -> None:
    beyond = trajectory("q1", [99_999, 2])
    with (
        PoolClient(server.address, pool="stated") as plain,
        PoolClient(server.address, pool="stated", vocabulary=42) as stating,
    ):
        assert plain.add([trajectory("q1")]).inserted == 1
        assert stating.add([beyond, trajectory("q1", [41])]).refused == ((beyond.content_id, REASON),)
        assert plain.add([beyond]).refused == ((beyond.content_id, REASON),)


@pytest.mark.parametrize("held", [True, False])
def test_a_vocabulary_that_no_record_was_stored_under_is_not_kept(
    server: PoolServer, trajectory: MakeTrajectory, held: bool
) -> None:
    name, mistaken = f"mistaken-{held}", trajectory("q1", [150])
    with PoolClient(server.address, pool=name) as plain, PoolClient(server.address, pool=name, vocabulary=100) as wrong:
        if held:
            plain.add([trajectory("q1", [200]), trajectory("q1", [7])])
        reason = "prompt q1: token id 150 ≥ vocabulary 100"
        assert wrong.add([mistaken]).refused == ((mistaken.content_id, reason),)
        assert plain.stats().vocabulary is None
        assert plain.sample(["q1"], 2, seed=0, step=0, minimum=1).counts.tolist() == [2 if held else 0]
        with PoolClient(server.address, pool=name, vocabulary=300) as right:
            assert right.add([mistaken]).inserted == 1
        assert plain.stats().vocabulary == 300
        assert wrong.add([trajectory("q1", [299])]).inserted == 1  # the pool's own counts


@pytest.mark.usefixtures("server")
def test_check_takes_the_models_vocabulary_where_the_pool_has_none(
    redis_server: EmbeddedRedis, tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    commands = Commands(redis_server, load_tokenizer(MODEL), tmp_path / "data.jsonl", "doctored")
    pool = commands.pool()
    good = commands.answer(0, "0+1=1")
    bad = replace(good, tokens=good.tokens + 99_000)
    pool.add([good, bad])
    records = commands.checked()["pool records"]
    assert records["level"] == "wrong"
    assert f"1 damaged: {bad.content_id} of prompt {bad.prompt_id}: token id" in records["detail"]
    assert "≥ vocabulary 42" in records["detail"]
    assert "removed 1 damaged record of 2" in commands.ok("prune", "--damaged")
    assert commands.checked()["pool records"]["detail"] == (
        "every checksum and content id matches; every token id is below 42"
    )
    assert pool.content_ids(good.prompt_id) == [good.content_id]
    pool.close()


def test_check_says_what_it_could_not_check_of_a_pool_that_a_client_made(
    redis_server: EmbeddedRedis, server: PoolServer, tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    with PoolClient(server.address, pool="by-a-client") as client:
        assert client.add([trajectory("q1")]).inserted == 1
    commands = Commands(redis_server, load_tokenizer(MODEL), tmp_path / "data.jsonl", "by-a-client")
    found = commands.checked()
    assert {name: finding["level"] for name, finding in found.items()} == {
        **dict.fromkeys(("pool server", "pool content", "pool counters", "pool records"), "ok"),
        "pool tokenizer": "wrong",
    }
    assert found["pool tokenizer"]["detail"] == (
        f"the pool's writer stated {TOKENIZER}; model.path = {MODEL} has {commands.tokenizer.digest}"
    )
    assert "rlep.load_tokenizer(MODEL_DIR).digest" in found["pool tokenizer"]["remedy"]
    assert found["pool records"]["detail"].startswith(
        "every checksum and content id matches; token ids were not checked: "
    )

    commands.settings[1] = f'model.path="{tmp_path / "gone"}"'
    tokenizer = commands.checked()["pool tokenizer"]
    assert tokenizer["level"] == "skipped"
    assert tokenizer["detail"].endswith(f"; model.path = {tmp_path / 'gone'} has no tokenizer")
