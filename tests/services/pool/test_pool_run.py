"""One path to a pool: the same draws, additions, refusals and durability by a server on a socket or on a port."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError, RecordRefused
from rlep.core.types import ALL, AddReport
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.places import SOCKET, address_of, connected, hosted, private_socket
from rlep.services.pool.rpc.tls import ServerTls
from rlep.services.pool.values import PoolOptions, PoolPlace
from tests.services.conftest import TOKENIZER, MakeTrajectory
from tests.services.pool.pool_servers import make_certificate, serving
from tests.waiting import wait_until

PROMPTS = [f"{number:032x}" for number in range(8)]
KINDS = ("directory", "redis", "port")


def in_redis(redis: EmbeddedRedis, name: str, options: PoolOptions) -> Pool:
    """The pool itself."""
    return Pool.open(redis.url, name, tokenizer_digest=TOKENIZER, password_file=redis.password_file, options=options)


@contextmanager
def place_of(kind: str, redis: EmbeddedRedis, name: str) -> Iterator[PoolPlace]:
    """The place of a pool in this Redis, with a server."""
    if kind == "port":
        with serving(redis) as server:
            yield PoolPlace(f"grpc://{server.address}", Path("unused"), name)
        return
    os.environ["RLEP_REDIS_PASSWORD_FILE"] = str(redis.password_file)  # ``place`` undoes it
    url = redis.url if kind == "redis" else None
    place = PoolPlace(url, redis.directory, name, socket=private_socket(url))
    if kind == "directory":
        redis.stop()  # the host's own takes its place
    with hosted(place):
        yield place


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EmbeddedRedis, PoolPlace]]:
    """A Redis and a pool's place in it: served by this process for itself, over its directory or its address, or on a port."""
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", "unset")
    with EmbeddedRedis(tmp_path / "pool") as redis, place_of(request.param, redis, "same") as found:
        yield redis, found


def test_draws_and_additions_are_those_of_the_redis(
    place: tuple[EmbeddedRedis, PoolPlace], trajectory: MakeTrajectory
) -> None:
    redis, where = place
    stored = [trajectory(prompt) for prompt in PROMPTS for _ in range(PROMPTS.index(prompt))]
    with connected(where, minimum=3) as client:
        client.open(tokenizer_digest=TOKENIZER, cap=5)
        added = client.add(stored)
        # Of 28 three are beyond the cap; which go, before or after they are stored, is up to their content ids.
        assert added.inserted + len(added.refused) == sum(range(8))
        assert added.inserted - added.evicted == sum(min(held, 5) for held in range(8))
        with in_redis(redis, "same", PoolOptions(minimum=3)) as pool:
            assert client.digest() == pool.digest()
            assert client.prompt_ids() == pool.prompt_ids() == PROMPTS[1:]
            assert replace(client.stats(), redis_bytes=0) == replace(pool.stats(), redis_bytes=0)
            for step in range(4):
                mine = client.sample(PROMPTS, 2, seed=11, step=step)
                wanted = pool.sample(PROMPTS, 2, seed=11, step=step)
                assert mine.counts.tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
                assert mine.ids == wanted.ids
                assert np.array_equal(mine.tokens, wanted.tokens)
                assert mine.logprobs.tobytes() == wanted.logprobs.tobytes()
                assert [one.content_id for members in mine.values() for one in members] == list(mine.ids)
            every = client.sample(PROMPTS, ALL, seed=11, step=0, minimum=1)
            assert every.counts.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]


def test_responses_come_go_and_are_listed_by_name(
    place: tuple[EmbeddedRedis, PoolPlace], trajectory: MakeTrajectory
) -> None:
    stored = [trajectory(prompt) for prompt in PROMPTS[:3] for _ in range(2)]
    wanted = {one.prompt_id: [one.content_id] for one in stored}
    with connected(replace(place[1], name="run.live"), precision="float32") as client:
        client.open(tokenizer_digest=TOKENIZER, cap=ALL)
        client.add(stored)
        found = client.fetch(wanted)
        assert {prompt: [one.content_id for one in members] for prompt, members in found.items()} == wanted
        assert client.fetch({}).prompt_ids == ()
        assert {prompt: len(ids) for prompt, ids in client.contents().items()} == dict.fromkeys(PROMPTS[:3], 2)
        assert client.contents([PROMPTS[7]]) == {PROMPTS[7]: []}
        aside = stored[0]
        client.remove(aside.prompt_id, [aside.content_id], quarantine=True)
        assert client.contents([aside.prompt_id], quarantined=True) == {aside.prompt_id: [aside.content_id]}
        assert [held.quarantined for held in client.records([aside.prompt_id], quarantined=True)] == [False, True]
        assert [held.quarantined for held in client.records([aside.prompt_id])] == [False]
        assert client.stats().quarantined == 1
        assert [client.remove(prompt, ids) for prompt, ids in wanted.items()] == [1, 1, 1]
        with pytest.raises(PoolError, match="lacks 3 of 3 trajectories asked for by name"):
            client.fetch(wanted)
        with pytest.raises(RecordRefused, match="is not 32 hex digits"):
            client.fetch({PROMPTS[0]: ["x"]})


def test_a_pool_page_after_page_is_listed_whole(one_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    with serving(one_redis) as server, PoolClient(server.address, pool="pages") as client:
        names = [f"q{number:04}" for number in range(600)]  # a page has 256 prompts
        client.add([trajectory(name) for name in names])
        assert list(client.contents()) == names
        assert list(client.contents(names[::2])) == names[::2]


@pytest.mark.parametrize(
    ("name", "opening", "message"),
    [
        ("none", {"read_only": True}, "there is no pool none in this Redis; pools found: "),
        ("there", {"cap": 8}, "pool there was made with at most 5 trajectories a prompt, not 8"),
        (
            "there",
            {"tokenizer_digest": "another"},
            "holds token ids of tokenizer tokenizer-digest; this run's is another",
        ),
    ],
)
def test_another_pool_than_is_needed_is_refused(
    one_redis: EmbeddedRedis, name: str, opening: dict[str, Any], message: str
) -> None:
    with serving(one_redis) as server:
        with PoolClient(server.address, pool="there") as client:
            client.open(tokenizer_digest=TOKENIZER, cap=5)
        with PoolClient(server.address, pool=name) as client, pytest.raises(PoolError, match=message):
            client.open(**{"tokenizer_digest": TOKENIZER} | opening)


def test_only_this_user_comes_to_the_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    place = PoolPlace(None, deep, "pool")
    with hosted(place), connected(place) as client:
        assert client.names() == []
        assert len(address_of(place)) < 107 < len(str(deep / SOCKET))
        assert (deep / SOCKET).is_socket()
        assert stat.S_IMODE(deep.stat().st_mode) == 0o700
        link = Path(address_of(place).removeprefix("unix:")).parent
        assert stat.S_IMODE(link.parent.lstat().st_mode) == 0o700
    own = private_socket("redis://127.0.0.1")
    assert own is not None
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    assert private_socket(None) is private_socket("grpc://127.0.0.1:1") is None


@pytest.mark.parametrize("name", ["a#b?c", "100%41", 'a "quoted" one', "back\\slash", "two\nlines", "été"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str, trajectory: MakeTrajectory) -> None:
    place = PoolPlace(None, tmp_path / name, "pool")
    for inserted in (1, 0):  # the second finds the file of the first
        with hosted(place), connected(place, deadline=20.0) as client:
            client.open(tokenizer_digest=TOKENIZER)
            assert client.add([trajectory("q", [1])]).inserted == inserted


HOST = """
import sys, threading
from pathlib import Path
from rlep.services.pool.rpc.places import hosted
from rlep.services.pool.values import PoolPlace
with hosted(PoolPlace(None, Path(sys.argv[1]), "pool")):
    print("hosted", flush=True)
    threading.Event().wait()
"""


def another_host(directory: Path) -> subprocess.Popen[str]:
    """A process that hosts the directory, or stands in line for it, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOST, directory], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hosted\n"
    return process


def test_hosts_killed_again_and_again_under_a_writer_lose_and_double_nothing(
    tmp_path: Path, trajectory: MakeTrajectory
) -> None:
    """Of two that host a directory the owner is killed, the other takes over, and the next one stands in line."""
    place, reports, ended = PoolPlace(None, tmp_path / "pool", "pool"), list[AddReport](), threading.Event()
    hosts = [another_host(place.directory) for _ in range(2)]
    batches = [[trajectory(f"q{at % 5}", [serial, at]) for at in range(8)] for serial in range(2000)]

    def write() -> None:
        with connected(place, deadline=60.0) as client:
            client.open(tokenizer_digest=TOKENIZER, cap=ALL)
            for batch in batches:
                if ended.is_set():
                    return
                reports.append(client.add(batch))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            there = len(reports)
            wait_until(lambda: len(reports) > there + 3 or not writer.is_alive(), "batches before the kill")  # noqa: B023
            owner = hosts.pop(0)
            owner.send_signal(signal.SIGKILL)
            owner.communicate()
            hosts.append(another_host(place.directory))
        there = len(reports)
        wait_until(lambda: len(reports) > there + 3 or not writer.is_alive(), "batches after the last kill")
        ended.set()
        writer.join(60)
        assert len(reports) > 20
        assert all((report.inserted, report.duplicates) == (8, 0) for report in reports)
        with connected(place) as client:
            held = sorted(content_id for ids in client.contents().values() for content_id in ids)
            assert client.stats().trajectories == len(held)
        assert held == sorted(one.content_id for batch in batches[: len(reports)] for one in batch)
    finally:
        ended.set()
        for host in hosts:
            host.kill()
            host.communicate()


def test_a_token_comes_from_its_file_and_travels_encrypted(one_redis: EmbeddedRedis, tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    made = make_certificate(tmp_path, "server", authority)
    tokens, token, wrong = tmp_path / "tokens", tmp_path / "token", tmp_path / "wrong"
    tokens.write_text("read@secret abc123\n")
    tokens.chmod(0o600)
    token.write_text("abc123\n")
    wrong.write_text("abc124\n")
    tls = ServerTls(made.certificate_file, made.key_file)
    with (
        in_redis(one_redis, "secret", PoolOptions()) as pool,
        serving(one_redis, token_file=tokens, tls=tls) as server,
    ):
        place = PoolPlace(
            f"grpcs://{server.address}", tmp_path, "secret", token_file=token, ca_file=authority.certificate_file
        )
        with connected(place) as client:
            assert client.digest() == pool.digest()
        with (
            connected(replace(place, token_file=wrong)) as client,
            pytest.raises(PoolError, match="no token that this server knows"),
        ):
            client.digest()


def test_what_cannot_be_a_token_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    empty, good = tmp_path / "empty", tmp_path / "good"
    empty.write_text("\n")
    good.write_text("abc123")
    place = PoolPlace("grpc://192.0.2.1:7171", tmp_path, "pool", token_file=good)
    with pytest.raises(ConfigError, match=r"would carry the token of pool\.token_file in the clear: use grpcs://"):
        connected(place)
    with pytest.raises(ConfigError, match="does not hold one token"):
        connected(replace(place, token_file=empty))
    with pytest.raises(ConfigError, match="cannot be read"):
        connected(replace(place, token_file=tmp_path / "none"))


def test_a_url_with_tls_where_the_server_has_none_and_the_reverse_are_said(
    one_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    authority, stranger = make_certificate(tmp_path, "authority"), make_certificate(tmp_path, "stranger")
    made = make_certificate(tmp_path, "server", authority)
    patient = 300.0
    with serving(one_redis) as plain:
        place = PoolPlace(f"grpcs://{plain.address}", tmp_path, "pool", ca_file=authority.certificate_file)
        with pytest.raises(PoolError, match=r"it has no TLS; use grpc://"):  # at once: a later try cannot succeed
            connected(place, deadline=patient).names()
    with serving(one_redis, tls=ServerTls(made.certificate_file, made.key_file)) as secure:
        place = PoolPlace(f"grpc://{secure.address}", tmp_path, "pool")
        with pytest.raises(PoolError, match=r"it speaks TLS: use grpcs:// with pool\.ca_file"):  # at once, too
            connected(place, deadline=patient).names()
        place = PoolPlace(f"grpcs://{secure.address}", tmp_path, "pool", ca_file=stranger.certificate_file)
        with pytest.raises(PoolError, match=r"its certificate cannot be verified: check pool\.ca_file"):
            connected(place, deadline=patient).names()
