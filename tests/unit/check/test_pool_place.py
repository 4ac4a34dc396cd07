"""The password's file of the driver's environment reaches the pool's actor, whose environment is its node's; no password does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.services.pool.rpc.places import hosted
from rlep.services.pool.values import PoolPlace

URL = "redis://rlep@127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLEP_REDIS_PASSWORD", raising=False)
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", "secrets/redis")


def test_a_redis_comes_with_the_absolute_path(tmp_path: Path) -> None:
    assert pool_place(Config().with_values(pool={"url": URL})).password_file == tmp_path / "secrets" / "redis"
    assert pool_place(Config()).password_file is None  # an embedded one has its own


def test_a_password_in_the_environment_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEP_REDIS_PASSWORD", "hunter2")
    place = pool_place(Config().with_values(pool={"url": URL}))
    assert place.password_file is None
    assert "hunter2" not in repr(place)


def test_whoever_serves_it_reads_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLEP_REDIS_PASSWORD_FILE")
    place = PoolPlace(URL, tmp_path, "pool", socket=tmp_path / "s", password_file=tmp_path / "gone")
    with pytest.raises(ConfigError, match=f"^Redis password file {tmp_path}/gone cannot be read: "), hosted(place):
        pass
