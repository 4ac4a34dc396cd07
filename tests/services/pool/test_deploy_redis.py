"""A real server started with the shipped ``redis.conf`` and the users file that ``secrets.sh`` makes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from rlep.core.types import Trajectory
from rlep.services.pool.pool import Pool
from tests.services.pool.pool_servers import reserved_address
from tests.waiting import wait_until

DEPLOY = Path(__file__).parents[3] / "deploy"


@dataclass
class Server:
    """A server process with the shipped configuration, as a deployment starts it."""

    binary: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def start(self, *options: str) -> None:
        """Start it, with what a deployment sets on the command line; wait until it answers the health check."""
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        users = ("--aclfile", str(self.secrets / "users.acl"), "--maxmemory", "64mb")
        log = (self.folder / "log").open("ab")
        with log:
            command = [str(self.binary), str(DEPLOY / "redis.conf"), *place, *users, *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        process = self.process
        wait_until(lambda: self.healthy() or process.poll() is not None, "the server to be healthy")
        assert process.poll() is None, (self.folder / "log").read_text()

    def healthy(self) -> bool:
        """What the probes of compose.yaml and redis.yaml ask."""
        try:
            with self.client("health", "none") as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def client(self, name: str | None, password: str | None) -> redis.Redis:
        return redis.Redis(port=self.port, username=name, password=password)

    def rlep(self) -> redis.Redis:
        return self.client("rlep", (self.secrets / "redis_password").read_text())

    def pool(self) -> Pool:
        return Pool.open(
            f"redis://rlep@127.0.0.1:{self.port}/0",
            "shipped",
            tokenizer_digest="tokenizer-digest",
            password_file=self.secrets / "redis_password",
        )


@pytest.fixture
def server(binary: Path, tmp_path: Path) -> Iterator[Server]:
    subprocess.run([DEPLOY / "secrets.sh", tmp_path / "secrets"], check=True)
    with reserved_address() as address:
        made = Server(binary, tmp_path, int(address.rpartition(":")[2]))
        try:
            made.start()
            yield made
        finally:
            made.kill()


def test_the_configuration_is_what_a_pool_needs(server: Server) -> None:
    with server.rlep() as client:
        for name, value in {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        }.items():
            assert client.config_get(name) == {name: value}


def test_a_pool_keeps_what_was_acknowledged_across_a_kill(
    server: Server, trajectory: Callable[..., Trajectory]
) -> None:
    record = trajectory()
    with server.pool() as pool:
        assert pool.add([record]).inserted == 1
    server.kill()
    server.start()
    with server.pool() as pool:
        assert pool.prompt_ids() == [record.prompt_id]
        assert pool.add([record]).duplicates == 1


def test_a_full_server_refuses_writes_and_drops_nothing(server: Server) -> None:
    value = b"x" * 2**20
    with server.rlep() as client:
        fitted = 0
        while stored(client, f"rlep:{fitted}", value):
            fitted += 1
        assert 30 < fitted < 64  # MiB that fitted into 64 MB beside the server's own
        assert all(client.strlen(f"rlep:{number}") == 2**20 for number in range(fitted))


def stored(client: redis.Redis, key: str, value: bytes) -> bool:
    try:
        return bool(client.set(key, value))
    except redis.exceptions.OutOfMemoryError:
        return False


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
        ("SHUTDOWN",),
        ("ACL", "LIST"),
        ("KEYS", "*"),
        ("REPLICAOF", "NO", "ONE"),
    ],
    ids=" ".join,
)
def test_rlep_may_not_administrate(server: Server, command: tuple[str, ...]) -> None:
    with server.rlep() as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


def test_rlep_sees_only_its_own_keys(server: Server) -> None:
    with server.rlep() as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.set("other:key", "1")


def test_others_cannot_do_anything(server: Server) -> None:
    with server.client(None, None) as nameless, pytest.raises(redis.exceptions.AuthenticationError):
        nameless.ping()
    with server.client("rlep", "guess") as guessing, pytest.raises(redis.exceptions.AuthenticationError):
        guessing.ping()
    with server.client("health", "none") as health, pytest.raises(redis.exceptions.NoPermissionError):
        health.get("rlep:pools")


def test_secrets_are_private_kept_and_renewed_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"

    def make() -> dict[str, str]:
        subprocess.run([DEPLOY / "secrets.sh", folder], check=True)
        return {path.name: path.read_text() for path in folder.iterdir()}

    first = make()
    assert sorted(first) == ["grafana_password", "ray_token", "redis_password", "users.acl"]
    assert oct(os.stat(folder).st_mode)[-3:] == "700"
    assert len(first["ray_token"]) == len(first["redis_password"]) == 64
    assert first["redis_password"] not in first["users.acl"]
    assert make() == first
    (folder / "redis_password").unlink()
    renewed = make()
    assert renewed["ray_token"] == first["ray_token"]
    assert renewed["redis_password"] != first["redis_password"]
    assert renewed["users.acl"] != first["users.acl"]
