"""Members come and go by idempotent orders; names are never used twice; a newcomer that fails leaves no trace."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlep.actors.replicas import Crew, Rate
from rlep.core.errors import ConfigError, PlacementError


@dataclass
class Hand:
    """A member."""

    name: str
    spent: bool = False


class Ship:
    """A crew, what happened to it, and for how many there is room."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.log: list[str] = []
        self.aboard: set[str] = set()
        self.crew = Crew("hand", Hand, self.join, self.leave)

    async def join(self, hand: Hand) -> None:
        await asyncio.sleep(0)
        if len(self.aboard) >= self.room:
            raise PlacementError(f"no room for {hand.name}")
        self.aboard.add(hand.name)
        self.log.append(f"+{hand.name}")

    async def leave(self, hand: Hand, grace_s: float) -> None:
        await asyncio.sleep(0)
        self.aboard.discard(hand.name)
        self.log.append(f"-{hand.name} {grace_s:g}")

    async def started(self, count: int) -> Ship:
        await self.crew.start(count)
        self.log.clear()
        return self

    @property
    def names(self) -> list[str]:
        return [hand.name for hand in self.crew.members]


async def test_the_newest_leave_first_and_their_names_do_not_come_again() -> None:
    ship = await Ship().started(1)
    for count in (3, 3, 1, 1, 2):
        await ship.crew.scale(count, 5)
    assert ship.log == ["+hand-1", "+hand-2", "-hand-1 5", "-hand-2 5", "+hand-3"]
    assert ship.names == ["hand-0", "hand-3"]


async def test_one_who_left_may_be_told_again_but_never_the_last() -> None:
    ship = await Ship().started(2)
    await ship.crew.drain("hand-0", 1)
    await ship.crew.drain("hand-0", 1)
    assert ship.log == ["-hand-0 1"]
    with pytest.raises(ConfigError, match="hand-1 is the only hand: add another first"):
        await ship.crew.drain("hand-1", 1)
    with pytest.raises(ConfigError, match="there is no hand-7; there are hand-1"):
        await ship.crew.drain("hand-7", 1)
    with pytest.raises(ConfigError, match="at least one hand"):
        await ship.crew.scale(0, 1)
    assert ship.names == ["hand-1"]


async def test_newcomers_without_room_are_said_and_the_others_stay() -> None:
    ship = await Ship(room=3).started(1)
    with pytest.raises(PlacementError, match="2 of 4 newcomers did not come: no room for hand-3"):
        await ship.crew.scale(5, 1)
    assert ship.names == ["hand-0", "hand-1", "hand-2"]
    assert ship.aboard == set(ship.names)


async def test_a_crew_that_cannot_be_whole_at_the_start_fails_with_its_member_s_own_error() -> None:
    with pytest.raises(PlacementError, match=r"^no room for hand-2$"):
        await Ship(room=2).started(4)


async def test_once_a_newcomer_fails_those_on_their_way_are_given_up() -> None:
    ship = await Ship().started(1)
    on_the_way = asyncio.Event()

    async def join(hand: Hand) -> None:
        if hand.name == "hand-2":
            raise PlacementError("no room")
        await on_the_way.wait()

    ship.crew._join = join
    with pytest.raises(PlacementError, match="2 of 2 newcomers did not come: no room"):
        await asyncio.wait_for(ship.crew.scale(3, 1), 60)
    assert ship.names == ["hand-0"]


async def test_the_dead_are_replaced_by_an_order_for_as_many() -> None:
    ship = await Ship().started(2)
    ship.crew.members[0].spent = True
    with pytest.raises(ConfigError, match="hand-1 is the only hand"):
        await ship.crew.drain("hand-1", 1)
    await ship.crew.scale(2, 1)
    assert ship.names == ["hand-1", "hand-2"]


async def test_a_crew_that_is_all_dead_can_be_replaced() -> None:
    ship = await Ship().started(1)
    ship.crew.members[0].spent = True
    await ship.crew.scale(1, 1)
    assert ship.names == ["hand-1"]


async def test_an_order_that_is_withdrawn_leaves_nobody_half_hired() -> None:
    ship = await Ship().started(1)
    order = asyncio.create_task(ship.crew.scale(3, 1))
    await asyncio.sleep(0)
    assert len(ship.names) == 3
    order.cancel()
    await asyncio.gather(order, return_exceptions=True)
    assert ship.names == ["hand-0"]


ORDERS = st.lists(st.one_of(st.integers(1, 6), st.sampled_from([f"hand-{i}" for i in range(12)])), max_size=12)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(ORDERS)
def test_orders_given_at_once_end_as_if_given_one_after_the_other(orders: list[int | str]) -> None:
    async def run() -> None:
        at_once, in_turn = await Ship().started(2), await Ship().started(2)

        async def obey(ship: Ship, order: int | str) -> str:
            try:
                await (ship.crew.scale(order, 1) if isinstance(order, int) else ship.crew.drain(order, 1))
            except ConfigError as error:
                return str(error)
            return ""

        together = await asyncio.gather(*(obey(at_once, order) for order in orders))
        assert together == [await obey(in_turn, order) for order in orders]
        assert at_once.names == in_turn.names
        assert at_once.aboard == set(at_once.names)

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
