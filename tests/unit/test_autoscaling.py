"""How many generators there shall be, look by look; and what is done about it behind the role's port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlep.actors import autoscaler as module
from rlep.actors.autoscaler import GRACE_S, REST_S, Autoscaler
from rlep.actors.cluster import Cluster
from rlep.actors.replicas import ActorStatus, RoleStatus, State
from rlep.algorithms.autoscaling import Autoscaling, Limits, Load
from rlep.config.roles import ClusterConfig, GeneratorConfig
from rlep.config.settings import parse_config
from rlep.core.errors import PlacementError

LIMITS = Limits(minimum=1, maximum=6, sequences=8, start_s=20, idle_s=100)


def test_as_many_come_as_hold_what_has_waited_for_a_newcomers_time_to_start() -> None:
    policy = Autoscaling(LIMITS)
    full = {"held": (8, 6), "waiting": 17}  # 6 of 8 is full: three quarters
    assert [policy.wanted(Load(at, **full)) for at in (0, 10, 19.9)] == [2, 2, 2]  # type: ignore[arg-type]
    assert policy.wanted(Load(20, (8, 6), waiting=17)) == 5  # 17 requests need 3 more of 8
    assert policy.wanted(Load(21, (8, 8), coming=3, waiting=17)) == 5
    assert policy.wanted(Load(60, (8, 8), coming=3, waiting=90)) == 5  # nobody is called while some are on their way
    assert policy.wanted(Load(61, (8, 8, 8, 8, 8), waiting=90)) == 5
    assert policy.wanted(Load(81, (8, 8, 8, 8, 8), waiting=90)) == 6  # 12 more would be over the maximum


@pytest.mark.parametrize("between", [Load(10, (8, 5), waiting=3), Load(10, (8, 8)), Load(10, (8, 8), 1, 3)])
def test_the_wait_begins_anew_when_there_is_room_nothing_waits_or_somebody_comes(between: Load) -> None:
    policy = Autoscaling(LIMITS)
    for load in (Load(0, (8, 8), waiting=3), between, Load(11, (8, 8), waiting=3)):
        assert policy.wanted(load) == load.count
    assert policy.wanted(Load(30, (8, 8), waiting=3)) == 2
    assert policy.wanted(Load(31, (8, 8), waiting=3)) == 3


def test_the_minimum_stays_when_all_were_idle_long_enough_and_nobody_leaves_before() -> None:
    policy = Autoscaling(LIMITS)
    assert [policy.wanted(Load(at, (0, 0, 0))) for at in (0, 99)] == [3, 3]
    assert policy.wanted(Load(100, (0, 1, 0))) == 3  # one has work
    assert [policy.wanted(Load(at, (0, 0, 0))) for at in (101, 200, 201)] == [3, 3, 1]


def test_a_number_outside_of_the_limits_is_brought_back() -> None:
    policy = Autoscaling(Limits(2, 4, 8, 20, 100))
    assert policy.wanted(Load(0, (8,))) == 2  # one was lost for good
    assert policy.wanted(Load(0, (8,) * 5)) == 4


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(0, 8), max_size=7), st.integers(0, 3), st.integers(0, 99))
    )
)
def test_the_limits_hold_whatever_is_seen(looks: list[tuple[int, list[int], int, int]]) -> None:
    policy, at = Autoscaling(LIMITS), 0
    for seconds, held, coming, waiting in looks:
        at += seconds
        load = Load(at, tuple(held), coming, waiting)
        wanted = policy.wanted(load)
        assert LIMITS.minimum <= wanted <= LIMITS.maximum
        if waiting and load.count >= LIMITS.minimum:
            assert wanted >= min(load.count, LIMITS.maximum), "nobody is sent away while requests wait"


@dataclass
class Role:
    """Generators behind the port: told how many there shall be, they are."""

    held: list[int]
    waiting: int = 0
    full: bool = False
    told: list[tuple[int, float]] = field(default_factory=list)
    others: Sequence[tuple[str, State]] = (("generator-8", "leaving"), ("generator-9", "lost"))

    def status(self) -> RoleStatus:
        at_work = [ActorStatus(f"generator-{n}", "serving", in_flight=held) for n, held in enumerate(self.held)]
        return RoleStatus("generator", (*at_work, *(ActorStatus(*other) for other in self.others)), self.waiting)

    async def scale(self, count: int, grace_s: float) -> None:
        self.told.append((count, grace_s))
        if self.full:
            raise PlacementError("1 of 1 newcomers did not come: no CPU")
        self.held = [*self.held, *[0] * count][:count]

    async def drain(self, name: str, grace_s: float) -> None:
        raise AssertionError("nobody is drained by name")


@dataclass
class Scaled:
    """An autoscaler with a clock moved by hand, over a cluster that is not connected."""

    role: Role
    home: Path | None
    now: float = 0.0
    events: list[tuple[str, str, str]] = field(default_factory=list)

    async def started(self) -> Autoscaler:
        cluster = Cluster(ClusterConfig(), "run", lambda *event: self.events.append(event))
        cluster.home = self.home
        config = GeneratorConfig(maximum=4, max_sequences=8, idle_s=50, cpus=2, gpus=0, label_selector={"a": "b"})
        scaler = Autoscaler(cluster, self.role, config, lambda: self.now)
        cluster.timeline.add("generator-0", "start", cluster.timeline._clock() - 5)  # a newcomer needs 5 s
        await scaler.start()
        return scaler


async def look(scaled: Scaled, scaler: Autoscaler, at: float) -> list[tuple[int, float]]:
    """Look at that time; what the role was told so far."""
    scaled.now = at
    await scaler.look()
    return scaled.role.told


async def test_generators_come_and_leave_and_those_that_leave_or_are_lost_do_not_count(tmp_path: Path) -> None:
    scaled = Scaled(Role([8], waiting=9), tmp_path)
    scaler = await scaled.started()
    assert await look(scaled, scaler, 0) == []
    assert await look(scaled, scaler, 6) == [(3, GRACE_S)]
    scaled.role.held, scaled.role.waiting = [0, 0, 0], 0
    assert await look(scaled, scaler, 10) == [(3, GRACE_S)]
    assert await look(scaled, scaler, 60) == [(3, GRACE_S), (1, GRACE_S)]
    await scaler.close()
    assert scaled.events == []


async def test_a_cluster_without_room_is_said_once_and_left_alone_for_a_while(tmp_path: Path) -> None:
    scaled = Scaled(Role([8], waiting=9, full=True), tmp_path)
    scaler = await scaled.started()
    for at in (0, 6, 12, 18, REST_S):  # it would be due again at 18
        told = await look(scaled, scaler, at)
    assert told == [(3, GRACE_S)]
    assert scaled.events == [("scaling_refused", "generator", "1 of 1 newcomers did not come: no CPU")]
    for at in (REST_S + 10, REST_S + 20):
        told = await look(scaled, scaler, at)
    assert len(told) == 2
    await scaler.close()


async def test_a_joined_cluster_is_asked_for_room_and_released_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, object]] = []
    monkeypatch.setattr(
        module,
        "request_resources",
        lambda *, bundles, bundle_label_selectors: asked.append((bundles, bundle_label_selectors)),
    )
    scaled = Scaled(Role([8], waiting=1), None)
    scaler = await scaled.started()
    for at in (0, 6):
        await look(scaled, scaler, at)
    await scaler.close()
    assert asked == [([{"CPU": 2.0}] * 2, [{"a": "b"}] * 2), ([], None)]


def test_the_first_number_lies_within_the_limits() -> None:
    for wrong in ({"count": 5, "maximum": 4}, {"count": 1, "minimum": 2, "maximum": 4}):
        with pytest.raises(ValueError, match=r"generator.count = \d must lie between generator.minimum"):
            parse_config({"generator": wrong})
    assert parse_config({"generator": {"count": 5, "minimum": 9}}).generator.maximum == 0
