"""Which ranks are reserved together, each by itself or those of one replica, and that all of them see the run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlep.actors.learners import Learners
from rlep.actors.timeline import Timeline
from rlep.config.roles import ActorConfig
from rlep.config.schema import Config
from rlep.core.errors import ConfigError


@pytest.mark.parametrize(
    ("replicas", "bundles", "cpus", "gpus", "slots"),
    [(1, 4, 2.0, 1.0, [0, 1, 2, 3]), (2, 2, 4.0, 2.0, [0, 0, 1, 1]), (4, 4, 2.0, 1.0, [0, 1, 2, 3])],
)
def test_the_ranks_of_a_replica_share_a_bundle(
    replicas: int, bundles: int, cpus: float, gpus: float, slots: list[int]
) -> None:
    reserved: list[Sequence[ActorConfig]] = []
    cluster = cast(Any, SimpleNamespace(reserve=lambda name, wanted: reserved.append(wanted)))
    learner = {"ranks": 4, "replicas": replicas, "cpus": 2, "gpus": 1, "label_selector": {"rlep-role": "learner"}}
    learners = Learners(cluster, Config().with_values(learner=learner), [Path("model")])
    assert [learners._slot(rank).bundle for rank in range(4)] == slots
    for wanted in reserved:
        assert wanted == [ActorConfig(cpus=cpus, gpus=gpus, label_selector={"rlep-role": "learner"})] * bundles


class Nodes:
    """Two ranks, each on a machine of its own; the second sees the driver's files, or does not."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.looked: list[Path] = []
        self.begun: list[str] = []
        self.timeline = Timeline()

    def reserve(self, name: str, bundles: Sequence[ActorConfig]) -> None:
        """There is room."""

    async def place(self, kind: Any, name: str, role: Any, rank: int, **_: object) -> Any:
        async def node() -> str:
            return f"node-{rank}"

        async def check_shared(file: Path) -> None:
            self.looked.append(file)
            assert file.name in os.listdir(file.parent)
            if rank and not self.shared:
                raise ConfigError("not here")

        async def run(number: int, method: str, *_: object) -> str:
            self.begun.append(method)
            return "tcp://node-0:1"

        methods = {"node": node, "check_shared": check_shared, "run": run, "ping": node}
        return SimpleNamespace(**{name: SimpleNamespace(remote=method) for name, method in methods.items()})

    def learners(self, directory: Path) -> Learners:
        """Not started."""
        config = Config().with_values(learner={"ranks": 2}, run={"directory": directory})
        return Learners(cast(Any, self), config, [Path("model")])


async def test_every_rank_looks_for_a_file_of_the_run_directory_before_it_loads_anything(tmp_path: Path) -> None:
    nodes = Nodes(shared=True)
    await nodes.learners(tmp_path).start()
    first, second = nodes.looked
    assert (first, first.parent) == (second, tmp_path)
    assert nodes.begun == ["meeting_point", "start", "start"]
    assert os.listdir(tmp_path) == []


async def test_a_rank_on_another_disk_ends_the_start_and_nothing_is_left(tmp_path: Path) -> None:
    nodes = Nodes(shared=False)
    with pytest.raises(ConfigError, match="not here"):
        await nodes.learners(tmp_path).start()
    assert nodes.begun == ["meeting_point"]
    assert os.listdir(tmp_path) == []


async def test_without_a_run_directory_nobody_looks(tmp_path: Path) -> None:
    nodes = Nodes(shared=False)
    await nodes.learners(tmp_path / "none").start()
    assert nodes.looked == []
