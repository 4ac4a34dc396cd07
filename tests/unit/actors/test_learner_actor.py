"""A rank's actor answers while the rank computes: whether a checkpoint is complete, and that it is to end."""

from __future__ import annotations

import asyncio
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlep.actors.learner_actor as module
from rlep.actors.generator_actor import GeneratorActor
from rlep.actors.learner_actor import LearnerActor, Rank
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError

pytestmark = pytest.mark.asyncio


class Computing(Rank):
    """An update that lasts until it is told to end."""

    def __init__(self, weights: Path) -> None:
        super().__init__(0)
        self.begun, self.end, self.closed = threading.Event(), threading.Event(), False
        self._published = weights

    def update(self, *_: object) -> None:
        """For as long as the test wants."""
        self.begun.set()
        assert self.end.wait(60)

    def written(self) -> bool:
        """From any thread."""
        return True

    def close(self) -> None:
        """Noted."""
        self.closed = True


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Computing]:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "version-1").touch()
    made = Computing(weights)
    yield made
    made.end.set()


def actor_of(rank: Rank) -> Any:
    """The class behind the actor, in this process."""
    actor = LearnerActor.__ray_metadata__.modified_class(0)  # type: ignore[attr-defined]
    actor._rank = rank
    return actor


async def test_in_the_middle_of_an_update_it_closes_at_once_and_leaves_no_weights(rank: Computing) -> None:
    actor = actor_of(rank)
    update = asyncio.create_task(actor.run(0, "update"))
    await asyncio.to_thread(rank.begun.wait, 60)
    assert await actor.run(1, "written")
    await actor.close()
    assert not rank.end.is_set()
    assert not update.done()
    assert not (rank._published or Path()).exists()
    assert not rank.closed  # its groups end with the process
    rank.end.set()
    await update


async def test_otherwise_it_closes_in_order(rank: Computing) -> None:
    actor = actor_of(rank)
    rank.end.set()
    await actor.run(0, "update")
    await actor.close()
    assert rank.closed


async def test_a_node_with_builds_for_cpus_refuses_a_rank_and_a_generator_for_gpus(tmp_path: Path) -> None:
    """On a cluster that is joined only the node itself knows what it has."""
    config = load_config([], ["learner.gpus=1", "generator.gpus=1"])
    with pytest.raises(ConfigError, match=r"learner.gpus = 1 needs the CUDA builds; installed are torch"):
        Rank(0).start([tmp_path], config, 1, "tcp://127.0.0.1:1", ())
    kind = GeneratorActor.__ray_metadata__.modified_class  # type: ignore[attr-defined]
    generator = kind.__new__(kind)
    generator._gpus = config.generator.gpus
    with pytest.raises(ConfigError, match=r"generator.gpus = 1 needs the CUDA builds; installed are torch"):
        await generator.start(1, 60.0)


async def test_a_rank_that_does_not_see_the_run_directory_names_its_machine(
    rank: Computing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARED_S", 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".shared-1").touch()
    await actor_of(rank).check_shared(tmp_path / "run" / ".shared-1")
    with pytest.raises(ConfigError) as refused:
        await actor_of(rank).check_shared(tmp_path / "run" / ".shared-2")
    assert str(refused.value) == (
        f"run.directory = {tmp_path}/run on {platform.node()}, where a learner rank is, is not the driver's: "
        "it must be a directory that the machines of driver and learner share"
    )
