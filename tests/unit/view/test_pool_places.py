"""Which pools a run's page looks into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlep.services.pool.values import PoolPlace
from rlep.view.pool_places import PoolPlaces, where
from rlep.view.run_files import RunPlace

REDIS = PoolPlace("redis://head:6379/0", Path(), "pool")


def of_run(directory: Path, config: dict[str, Any], *named: PoolPlace) -> tuple[list[PoolPlace], list[str]]:
    run = directory / "run"
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps(config))
    return PoolPlaces(named, [directory]).of_run(RunPlace("run", run))


@pytest.mark.parametrize(
    ("source", "names"), [(None, ["mine"]), ("pool", ["mine"]), ("live", ["a.live"]), ("both", ["mine", "a.live"])]
)
def test_a_run_has_a_pool_of_its_own_responses_where_it_replays_them(
    tmp_path: Path, source: str | None, names: list[str]
) -> None:
    config = {"run": {"name": "a"}, "replay": {"source": source}, "pool": {"name": "mine", "url": REDIS.url}}
    found, notes = of_run(tmp_path, config, REDIS)
    assert ([one.name for one in found], {one.url for one in found}, notes) == (names, {REDIS.url}, [])


def test_an_embedded_pool_that_was_named_is_the_runs_by_its_directory(tmp_path: Path) -> None:
    pool = tmp_path / "elsewhere"
    config = {"run": {"name": "a"}, "pool": {"name": "pool", "directory": str(tmp_path / "run" / ".." / "elsewhere")}}
    assert of_run(tmp_path, config, REDIS, PoolPlace(None, pool, "")) == ([PoolPlace(None, pool, "pool")], [])
    assert of_run(tmp_path, config, REDIS)[1] == [
        f"no process serves its pool now: rlep console --pool {config['pool']['directory']} does, and shows it"
    ]


def test_a_place_is_shown_without_its_secrets() -> None:
    shown = where(PoolPlace("rediss://user:secret@head:6379/1?password=secret", Path(), "pool"))
    assert shown == "rediss://head:6379/1"
