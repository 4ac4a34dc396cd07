"""The console's pages of pools, over a real Redis and a real pool server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.access import Tokens
from rlep.services.pool.rpc.places import hosted
from rlep.services.pool.rpc.served_census import (
    entries_of_prompt,
    pool_names,
    response_counts,
    served_client,
    stats_of,
)
from rlep.services.pool.values import PoolPlace
from rlep.view.words import short
from tests.services.conftest import MakeTrajectory
from tests.services.pool.pool_servers import serving
from tests.unit.view.console_scene import client_of, write_run
from tests.unit.view.page_checks import Found, assert_harmless, page
from tests.unit.view.pool_scene import asked, fill, opened

HELD = (0, 1, 2, 3, 5, 9)
"""Responses that the pool has for each of six questions."""


def card(title: str, figure: object) -> str:
    """The head of a card of a page."""
    return f'<h2>{title}</h2><div class="big">{figure}</div>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("home") / "runs"
    asyncio.run(write_run(directory / "a"))
    return directory


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Path]:
    """The run's own pool while a process serves it: what the run drew from, and hostile texts."""
    place = PoolPlace(None, runs / "a" / "pool", "pool")
    with hosted(place):
        fill(EmbeddedRedis(place.directory))
        yield place.directory


@pytest.fixture(scope="module")
def counted(served_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> PoolPlace:
    """A pool whose questions have ``HELD`` responses; of the first question's one each is removed and quarantined."""
    with opened(served_redis, "counted", "tok") as pool:
        made = {
            f"q{at}": [trajectory(f"q{at}", tokenizer="tok") for _ in range(held or 2)] for at, held in enumerate(HELD)
        }
        pool.add([one for several in made.values() for one in several])
        gone, aside = made["q0"]
        pool.remove("q0", [gone.content_id])
        pool.remove("q0", [aside.content_id], quarantine=True)
    return PoolPlace(None, served_redis.directory, "counted")


def test_a_pool_is_counted_at_every_address_alike(counted: PoolPlace, tmp_path: Path, one_redis: EmbeddedRedis) -> None:
    token_file = tmp_path / "token"
    Tokens.read(token_file)
    with serving(one_redis, token_file=token_file) as server:
        place = PoolPlace(f"grpc://{server.address}", Path(), "counted", token_file)
        assert "counted" in pool_names(place)
        for address in (counted, place):
            with served_client(address) as look:
                stats, (entries, total) = stats_of(look), entries_of_prompt(look, "q5", 4)
                assert response_counts(look, ["q5", "nobody", "q2"]) == [9, 0, 2]
                aside, kept = (entries_of_prompt(look, prompt_id, 4)[0] for prompt_id in ("q0", "q1"))
            assert (stats.trajectories, stats.questions) == (20, 6)
            assert stats.questions_with == {n: sum(held >= n for held in HELD) for n in (1, 2, 4, 8)}
            assert (stats.quarantined, stats.by_policy) == (1, {"policy@3": 20})
            assert (len(entries), total) == (4, 9)
            assert [entry.quarantined for entry in (*aside, *kept)] == [True, False]
        client = client_of(tmp_path, pools=[place])
        text = page(client, "/pools/0/counted")
        assert card("Responses", 20) in text
        assert token_file.read_text().strip() not in text + page(client, "/pools")
    gone = page(client, "/pools")
    assert "not done within 2 s" in gone


def test_a_named_pool_is_shown(counted: PoolPlace, tmp_path: Path, served_redis: EmbeddedRedis) -> None:
    client = client_of(tmp_path, pools=[PoolPlace(None, served_redis.directory, "pool")])
    assert '<a href="/pools/0/counted">' in page(client, "/pools")
    text = page(client, "/pools/0/counted")
    rows = Found(text).rows
    assert ["0", "1", "16.7 %"] in rows
    assert ["2 to 3", "2", "33.3 %"] in rows
    assert ["8 or more", "1", "16.7 %"] in rows
    assert [row[1:4] for row in rows if row[0] == "q5"] == [["9", "4", "1: 42 "]]
    entries = Found(page(client, "/pools/0/counted/prompts/q1")).rows
    assert [row[-1].strip() for row in entries[1:]] == [""]
    assert served_redis.password_file.read_text().strip() not in text
    for path in ("/pools/0/nothing", "/pools/1/counted", "/pools/0/%2e%2e", "/pools/x/counted"):
        assert client.get(path).status_code == 404


def test_the_pool_of_a_run_that_a_process_serves(runs: Path, served: Path) -> None:
    client = client_of(runs)
    text = page(client, "/runs/runs~a/pool")
    rows = Found(text).rows
    assert card("Responses", 41) in text
    replays = Counter[str]()
    for step in range(4):
        table = pq.read_table(runs / "a" / "rollouts" / f"step-{step:06d}.parquet").to_pylist()
        replays.update(row["content_id"] for row in table if row["replayed"])
    assert f"{replays.total()} replays in the newest 4 steps, {len(replays)} of them different" in text
    drawn = [row for row in rows if len(row) == 4 and row[2].isdigit() and row[3].isdigit()]
    assert sorted(int(row[2]) for row in drawn) == sorted(times for _, times in replays.most_common(20))
    assert not any(row[1] in replays for row in drawn)  # their texts are shown, not their ids
    newest = pq.read_table(runs / "a" / "rollouts" / "step-000003.parquet").to_pylist()
    asked_now = {row["prompt_id"] for row in newest}
    assert ["4 to 7", "10", "100.0 %", str(len(asked_now))] in rows
    assert_harmless(text)
    prompt = next(row["prompt_id"] for row in newest if row["replayed"])
    entries = Found(page(client, f"/runs/runs~a/prompts/{prompt}")).rows
    times = {row[0]: int(row[3]) for row in entries if len(row) == 9 and row[3].isdigit()}
    expected = {short(name): count for name, count in replays.items()}
    assert {name: count for name, count in times.items() if count} == {
        name: count for name, count in expected.items() if name in times
    }
    assert len(times) in (4, 5)


def test_what_is_written_into_a_pool_is_text(runs: Path, served: Path) -> None:
    client = client_of(runs, pools=[PoolPlace(None, served, "pool")])
    first = asked()[0].id
    for path in (
        f"/runs/runs~a/prompts/{first}",
        "/pools/0/pool",
        f"/pools/0/pool/prompts/{first}",
        "/runs/runs~a/pool",
    ):
        text = page(client, path)
        assert_harmless(text)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_damaged_record_is_named(served_redis: EmbeddedRedis, trajectory: MakeTrajectory, tmp_path: Path) -> None:
    with opened(served_redis, "damaged", "tok") as pool:
        pool.add([trajectory("q0", tokenizer="tok") for _ in range(2)])
        first = pool.content_ids("q0")[0]
        key = pool.store._records("q0")
        pool.store._link.client.hset(key, bytes.fromhex(first), b"\0\0\0\0damaged")  # type: ignore[arg-type]
    client = client_of(tmp_path, pools=[PoolPlace(None, served_redis.directory, "pool")])
    text = page(client, "/pools/0/damaged/prompts/q0")
    assert "the record is damaged" in text
    assert "2 responses." in text
    assert page(client, "/pools/0/damaged")


def test_a_look_starts_nothing_and_writes_nothing(runs: Path, tmp_path: Path) -> None:
    home = tmp_path / "runs"
    place = PoolPlace(None, home / "a" / "pool", "pool")
    with hosted(place), opened(EmbeddedRedis(place.directory), "pool", "tok"):
        (home / "a" / "config.json").write_text('{"pool": {"name": "pool"}, "run": {"name": "a"}}')
        (home / "a" / "events.jsonl").touch()
        before = sorted(os.listdir(home / "a" / "pool"))
        assert card("Responses", 0) in page(client_of(home), "/runs/runs~a/pool")
        assert sorted(os.listdir(home / "a" / "pool")) == before
    assert "no process serves its pool now" in page(client_of(home), "/runs/runs~a/pool")
    assert not (place.directory / "pool.sock").exists()


def test_a_named_embedded_pool_is_served_until_the_console_ends(tmp_path: Path) -> None:
    directory = tmp_path / "pool"
    with EmbeddedRedis(directory) as server, opened(server, "of-a-run", "tok"):
        pass
    arguments = (tmp_path, "--listen", "0", "--pool", directory)
    command = [sys.executable, "-m", "rlep", "console", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            browser.open(address, timeout=60).close()  # leaves a cookie
            with browser.open(urllib.parse.urljoin(address, "/pools"), timeout=60) as answer:
                assert "/pools/0/of-a-run" in answer.read().decode()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert not (directory / "redis.sock").exists()
