"""The same pool on a Redis Cluster of two primaries: every script stays within one slot, draws are the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from rlep.core.errors import PoolError
from rlep.core.types import Trajectory
from rlep.services.pool import named
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions
from tests.waiting import wait_until

MakeTrajectory = Callable[..., Trajectory]
TOKENIZER = "tokenizer-digest"
PASSWORD = "cluster-test"


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Free ports whose cluster bus port (10,000 higher) is free too; other test processes look elsewhere first.

    Both lie below 32,768, where a client may be given its own port at any time.
    """
    start = os.getpid() * 16 % 1600
    candidates = (21000 + (start + i) % 1600 for i in range(1600))
    free = (port for port in candidates if is_free(port) and is_free(port + 10_000))
    return list(itertools.islice(free, count))


def answers(node: redis.Redis) -> bool:
    """Whether a server takes connections yet."""
    with contextlib.suppress(redis.ConnectionError):
        return bool(node.ping())
    return False


@pytest.fixture
def cluster(tmp_path: Path, any_binary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of one of two primaries that share the 16,384 slots."""
    monkeypatch.setenv("RLEP_REDIS_PASSWORD", PASSWORD)
    ports = free_ports(2)
    processes = []
    for port in ports:
        directory = tmp_path / str(port)
        directory.mkdir()
        settings = f"bind 127.0.0.1\nport {port}\ndir {directory}\nlogfile log\ncluster-enabled yes\nappendonly yes\n"
        settings += f'save ""\nrequirepass {PASSWORD}\nmasterauth {PASSWORD}\n'
        (directory / "redis.conf").write_text(settings)
        processes.append(subprocess.Popen([any_binary, directory / "redis.conf"], stdout=subprocess.DEVNULL))
    nodes = [redis.Redis(port=port, password=PASSWORD) for port in ports]
    try:
        for process, node, slots in zip(processes, nodes, (range(8192), range(8192, 16384)), strict=True):
            wait_until(lambda: process.poll() is not None or answers(node), "a primary to answer")  # noqa: B023
            node.execute_command("CLUSTER", "ADDSLOTS", *slots)
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1])

        def whole() -> bool:
            found = [node.execute_command("CLUSTER INFO") for node in nodes]
            return all(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "2" for info in found)

        wait_until(whole, "the primaries to know each other")
        yield f"redis://127.0.0.1:{ports[0]}"
    finally:
        for process, node in zip(processes, nodes, strict=True):
            node.close()
            process.kill()
            process.wait()


def test_a_cluster_holds_a_pool_like_one_server(
    cluster: str, trajectory: MakeTrajectory, tmp_path: Path, any_binary: Path
) -> None:
    batch = [trajectory(f"q{i % 40}", [i]) for i in range(200)]
    with Pool.open(cluster, "pool", tokenizer_digest=TOKENIZER) as pool:
        assert isinstance(pool._link.client, redis.RedisCluster)
        assert pool.add(batch + batch[:10]).inserted == 200
        assert pool.add(batch).duplicates == 200
        primaries = {node.port for node in pool._link.client.get_primaries()}
        holding = {
            node.port for node in pool._link.client.get_primaries() if pool._link.client.dbsize(target_nodes=node) > 10
        }
        assert holding == primaries
        prompts = pool.prompt_ids()
        assert len(prompts) == 40
        assert pool.stats().questions_with == {1: 40, 2: 40, 4: 40, 8: 0}
        sample = pool.sample(prompts, 2, seed=3, step=1)
        # By hand from the contract: the draw picks ranks among a prompt's content ids, wherever they lie.
        assert sample.counts.tolist() == [2] * 40
        for k, content_id in enumerate(sample.ids):
            assert content_id in pool.content_ids(prompts[k // 2])
        held = named.contents(pool)  # what live replay asks, on both primaries
        assert held == {prompt_id: pool.content_ids(prompt_id) for prompt_id in sorted(prompts)}
        wanted = {prompt_id: ids[::-1] for prompt_id, ids in held.items()}
        found = named.fetch(pool, wanted).trajectories()
        assert {prompt_id: [one.content_id for one in members] for prompt_id, members in found.items()} == wanted
        gone = batch[0]
        assert pool.remove(gone.prompt_id, [gone.content_id]) == 1
        assert pool.add([gone]).inserted == 1
        again = pool.sample(prompts[::-1], 2, seed=3, step=1)
        assert sorted(again.ids) == sorted(sample.ids)
        digest = pool.seal()
    with Pool.open(cluster, "pool", tokenizer_digest=None, options=PoolOptions(read_only=True)) as reader:
        assert reader.digest() == digest
        assert reader.sample(prompts, 2, seed=3, step=1).ids == sample.ids


def test_every_primary_of_a_cluster_is_checked(cluster: str) -> None:
    with Pool.open(cluster, "pool", tokenizer_digest=TOKENIZER) as pool:
        client = pool._link.client
        assert isinstance(client, redis.RedisCluster)
        client.config_set("maxmemory-policy", "allkeys-lru", target_nodes=client.get_primaries()[1])
    with pytest.raises(PoolError, match=r"Redis 127\.0\.0\.1:\d+ drops keys"):
        Pool.open(cluster, "pool", tokenizer_digest=TOKENIZER)
