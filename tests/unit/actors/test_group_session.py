"""Who is in a group with the learner, when a new one is made, and what a failure says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rlep.actors.learner_actor import Probes
from rlep.actors.weight_sync import GroupSession
from rlep.config.roles import GeneratorConfig
from rlep.core.errors import LearnerLost, ModelError, WeightSyncError
from rlep.engines.weights.weight_update import BroadcastGroup, GroupBackend, WeightDtype, WeightUpdate

pytestmark = pytest.mark.asyncio


@dataclass
class Side:
    """Learner and generators at once, which write down what happens; a scripted failure happens once."""

    members: tuple[str, ...] = ("generator-0.0", "generator-1.0")
    opened: list[BroadcastGroup] = field(default_factory=list)
    taken: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    """By weight update: who took part, in which group (its number) and as which first rank."""
    take_fails: list[Exception] = field(default_factory=list)
    send_fails: list[Exception] = field(default_factory=list)
    comes_back_as: tuple[str, ...] = ()
    members_come: asyncio.Event | None = None
    """The learner waits for it before it sends."""
    leaves: str = ""
    """Who leaves while the learner makes ready."""

    async def open_group(self, backend: GroupBackend, world_size: int, deadline_s: float) -> BroadcastGroup:
        self.opened.append(BroadcastGroup(backend, "::1", len(self.opened), "token", 1, world_size, deadline_s))
        return self.opened[-1]

    async def publish(
        self, version: int, probes: Probes, dtype: WeightDtype, group: BroadcastGroup | None = None
    ) -> WeightUpdate:
        assert group is not None
        self.members = tuple(member for member in self.members if member != self.leaves)
        return WeightUpdate(version, (), group, (), 1e-4, ())

    async def send(self, group: BroadcastGroup, dtype: WeightDtype, deadline_s: float) -> None:
        assert group == self.opened[-1]
        if self.members_come is not None:
            await self.members_come.wait()
        if self.send_fails:
            raise self.send_fails.pop(0)

    def living(self) -> tuple[str, ...]:
        return self.members

    async def take(self, weight_updates: Mapping[str, WeightUpdate], *, deadline_s: float) -> float:
        sources = {name: one.source for name, one in weight_updates.items()}
        assert all(isinstance(source, BroadcastGroup) for source in sources.values())
        self.taken.append({n: (s.port, s.first_rank) for n, s in sources.items() if isinstance(s, BroadcastGroup)})
        if self.take_fails:
            self.members = self.comes_back_as or self.members
            raise self.take_fails.pop(0)
        return 1e-6


def session(side: Side, workers: int = 2) -> GroupSession:
    role = GeneratorConfig(transfer="gloo", tensor_parallel=workers, transfer_deadline_s=5.0)
    return GroupSession(cast(Any, side), cast(Any, side), (), role)


async def test_each_generator_gets_the_ranks_after_the_learner_and_the_group_is_kept() -> None:
    side = Side()
    opened = session(side)
    assert [await opened.publish(version, 5) for version in (0, 1)] == [1e-6, 1e-6]
    # learner 0, then two tensor-parallel workers of each generator
    assert [(group.world_size, group.deadline_s) for group in side.opened] == [(5, 5.0)]
    assert side.taken == [{"generator-0.0": (0, 1), "generator-1.0": (0, 3)}] * 2


async def test_a_new_a_removed_and_a_restarted_generator_make_a_new_group() -> None:
    side = Side()
    opened = session(side, workers=1)
    for members in (("a.0",), ("a.0", "b.0"), ("b.0",), ("b.1",), ("b.1",)):
        side.members = members
        await opened.publish(0, 5)
    assert [group.world_size for group in side.opened] == [2, 3, 2, 2]
    assert side.taken[-1] == {"b.1": (3, 1)}


async def test_a_generator_that_dies_during_a_transfer_is_left_out_of_the_next_attempt() -> None:
    side = Side(
        take_fails=[WeightSyncError("generator-1.0: the actor died")],
        send_fails=[WeightSyncError("the transfer of model.norm.weight broke")],
        comes_back_as=("generator-0.0",),
    )
    assert await session(side).publish(3, 5) == 1e-6
    assert [group.world_size for group in side.opened] == [5, 3]
    assert side.taken[1] == {"generator-0.0": (1, 1)}


async def test_who_leaves_before_the_transfer_is_not_waited_for() -> None:
    side = Side(leaves="generator-1.0")
    assert await session(side).publish(3, 5) == 1e-6
    assert [group.world_size for group in side.opened] == [5, 3]
    assert side.taken == [{"generator-0.0": (1, 1)}]


async def test_the_same_members_meet_anew_after_a_failure() -> None:
    side = Side(send_fails=[WeightSyncError("broke")])
    await session(side).publish(3, 5)
    assert [group.world_size for group in side.opened] == [5, 5]


async def test_three_failures_are_an_error_that_names_them() -> None:
    side = Side(take_fails=[WeightSyncError(f"generator-{n}.0: did not answer") for n in range(3)])
    opened = session(side)
    with pytest.raises(WeightSyncError) as caught:
        await opened.publish(7, 5)
    assert str(caught.value) == (
        "policy version 7 was not transferred: attempt 1: generator-0.0: did not answer; "
        "attempt 2: generator-1.0: did not answer; attempt 3: generator-2.0: did not answer"
    )
    await opened.publish(7, 5)
    assert len(side.opened) == 4


async def test_a_lost_learner_is_said_at_once_and_its_group_not_used_again() -> None:
    side = Side(send_fails=[LearnerLost("send: rank 0 died")], take_fails=[WeightSyncError("generator-0.0: broke")])
    opened = session(side)
    with pytest.raises(LearnerLost, match="rank 0 died"):
        await opened.publish(1, 5)
    await opened.publish(1, 5)
    assert len(side.opened) == 2


async def test_weights_of_another_model_are_said_at_once_though_the_learner_waits_for_members() -> None:
    side = Side(take_fails=[ModelError("the learner offers 26 weights")], members_come=asyncio.Event())
    with pytest.raises(ModelError, match="offers 26 weights"):
        await session(side).publish(1, 5)
    assert len(side.opened) == 1


async def test_nobody_there_is_an_error_after_the_deadline_and_somebody_who_comes_is_waited_for() -> None:
    side = Side(members=())
    with pytest.raises(WeightSyncError, match="no generator was there for policy version 2 within 0 s"):
        await session(side).publish(2, 0)
    publishing = asyncio.create_task(session(side).publish(2, 60))
    await asyncio.sleep(0)
    side.members = ("generator-0.1",)
    assert await publishing == 1e-6
