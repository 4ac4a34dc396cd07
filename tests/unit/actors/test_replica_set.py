"""Replicas come and go by idempotent commands; names are never used twice; one that fails to start leaves no trace."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlep.actors.replicas import Rate, Replica, ReplicaSet
from rlep.core.errors import ConfigError, PlacementError


class Worker(Replica):
    """One replica."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self._cluster = cluster
        self.dead = False

    @property
    def out_of_restarts(self) -> bool:
        return self.dead

    async def join(self) -> None:
        await self._cluster.join(self)

    async def leave(self, grace_s: float) -> None:
        await self._cluster.leave(self, grace_s)


class Cluster:
    """A replica set, what happened to it, and how many replicas its cluster can hold."""

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self.log: list[str] = []
        self.running: set[str] = set()
        self.replicas = ReplicaSet("worker", lambda name: Worker(name, self))

    async def join(self, worker: Worker) -> None:
        await asyncio.sleep(0)
        if len(self.running) >= self.limit:
            raise PlacementError(f"no room for {worker.name}")
        self.running.add(worker.name)
        self.log.append(f"+{worker.name}")

    async def leave(self, worker: Worker, grace_s: float) -> None:
        await asyncio.sleep(0)
        self.running.discard(worker.name)
        self.log.append(f"-{worker.name} {grace_s:g}")

    async def started(self, count: int) -> Cluster:
        await self.replicas.start(count)
        self.log.clear()
        return self

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self.replicas.members]


async def test_the_newest_are_drained_first_and_their_names_are_not_used_again() -> None:
    cluster = await Cluster().started(1)
    for count in (3, 3, 1, 1, 2):
        await cluster.replicas.scale(count, 5)
    assert cluster.log == ["+worker-1", "+worker-2", "-worker-1 5", "-worker-2 5", "+worker-3"]
    assert cluster.names == ["worker-0", "worker-3"]


async def test_a_removed_replica_may_be_drained_again_but_never_the_last_one() -> None:
    cluster = await Cluster().started(2)
    await cluster.replicas.drain("worker-0", 1)
    await cluster.replicas.drain("worker-0", 1)
    assert cluster.log == ["-worker-0 1"]
    with pytest.raises(ConfigError, match="worker-1 is the only worker: add another first"):
        await cluster.replicas.drain("worker-1", 1)
    with pytest.raises(ConfigError, match="there is no worker-7; there are worker-1"):
        await cluster.replicas.drain("worker-7", 1)
    with pytest.raises(ConfigError, match="at least one worker"):
        await cluster.replicas.scale(0, 1)
    assert cluster.names == ["worker-1"]


async def test_new_replicas_without_resources_are_reported_and_the_others_stay() -> None:
    cluster = await Cluster(limit=3).started(1)
    with pytest.raises(PlacementError, match="2 of 4 new workers did not start: no room for worker-3"):
        await cluster.replicas.scale(5, 1)
    assert cluster.names == ["worker-0", "worker-1", "worker-2"]
    assert cluster.running == set(cluster.names)


async def test_a_set_that_cannot_start_as_a_whole_fails_with_its_replica_s_own_error() -> None:
    with pytest.raises(PlacementError, match=r"^no room for worker-2$"):
        await Cluster(limit=2).started(4)


async def test_once_a_new_replica_fails_those_that_are_starting_are_cancelled() -> None:
    class Slow(Cluster):
        async def join(self, worker: Worker) -> None:
            if worker.name == "worker-2":
                raise PlacementError("no room")
            if worker.name == "worker-1":
                await asyncio.Event().wait()

    cluster = await Slow().started(1)
    with pytest.raises(PlacementError, match="2 of 2 new workers did not start: no room"):
        await asyncio.wait_for(cluster.replicas.scale(3, 1), 60)
    assert cluster.names == ["worker-0"]


async def test_dead_replicas_are_replaced_by_scaling_to_the_same_count() -> None:
    cluster = await Cluster().started(2)
    cluster.replicas.members[0].dead = True
    with pytest.raises(ConfigError, match="worker-1 is the only worker"):
        await cluster.replicas.drain("worker-1", 1)
    await cluster.replicas.scale(2, 1)
    assert cluster.names == ["worker-1", "worker-2"]


async def test_a_set_that_is_all_dead_can_be_replaced() -> None:
    cluster = await Cluster().started(1)
    cluster.replicas.members[0].dead = True
    await cluster.replicas.scale(1, 1)
    assert cluster.names == ["worker-1"]


async def test_a_cancelled_command_leaves_no_replica_half_created() -> None:
    cluster = await Cluster().started(1)
    command = asyncio.create_task(cluster.replicas.scale(3, 1))
    await asyncio.sleep(0)
    assert len(cluster.names) == 3
    command.cancel()
    await asyncio.gather(command, return_exceptions=True)
    assert cluster.names == ["worker-0"]


COMMANDS = st.lists(st.one_of(st.integers(1, 6), st.sampled_from([f"worker-{i}" for i in range(12)])), max_size=12)


@settings(max_examples=80)
@given(COMMANDS)
def test_commands_given_at_once_end_as_if_given_one_after_the_other(commands: list[int | str]) -> None:
    async def run() -> None:
        at_once, in_turn = await Cluster().started(2), await Cluster().started(2)

        async def outcome(cluster: Cluster, command: int | str) -> str:
            try:
                await (
                    cluster.replicas.scale(command, 1)
                    if isinstance(command, int)
                    else cluster.replicas.drain(command, 1)
                )
            except ConfigError as error:
                return str(error)
            return ""

        together = await asyncio.gather(*(outcome(at_once, command) for command in commands))
        assert together == [await outcome(in_turn, command) for command in commands]
        assert at_once.names == in_turn.names
        assert at_once.running == set(at_once.names)

    asyncio.run(run())


def test_a_rate_is_what_came_in_the_last_half_minute() -> None:
    now = [100.0]
    rate = Rate(lambda: now[0])
    assert rate.per_second() == 0
    now[0] = 110.0
    rate.add(600)
    assert rate.per_second() == 60  # 600 in 10 s
    now[0] = 130.0
    rate.add(300)
    assert rate.per_second() == 30  # 900 in 30 s
    now[0] = 140.0
    assert rate.per_second() == 10  # the first 600 are 30 s old
