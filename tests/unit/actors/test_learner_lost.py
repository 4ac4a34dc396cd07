"""What a lost learner says: which rank failed at what, and which rank the others waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ray.exceptions import RayActorError, RayTaskError

import rlep.actors.learners as module
from rlep.actors.learner_actor import Rank
from rlep.actors.learners import Learners
from rlep.actors.timeline import Timeline
from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, LearnerLost, OutOfMemory

pytestmark = pytest.mark.asyncio

Answer = Callable[[], Awaitable[object]]


async def silent() -> object:
    return await asyncio.Future[object]()


def fails(error: Exception) -> Answer:
    async def answer() -> object:
        raise error

    return answer


def raises(cause: Exception) -> Answer:
    """As Ray hands over what a method raised: the traceback is the message."""
    return fails(RayTaskError("save", f"\x1b[36mray::save()\x1b[39m\n  File a.py, line 3\n{cause}", cause))


async def alive() -> int:
    return 1


def rank_of(answer: Answer, ping: Answer) -> Any:
    """As an actor handle."""
    return SimpleNamespace(run=SimpleNamespace(remote=lambda *_: answer()), ping=SimpleNamespace(remote=ping))


def learners_of(
    *ranks: Answer, deadline_s: float = 60.0, heartbeat_timeout_s: float = 60.0, pings: Sequence[Answer] = ()
) -> Learners:
    deadlines = {"deadline_s": deadline_s, "heartbeat_timeout_s": heartbeat_timeout_s}
    config = Config().with_values(learner=deadlines)
    learners = Learners(cast(Any, SimpleNamespace(timeline=Timeline())), config, [Path("model")])
    learners._ranks = list(map(rank_of, ranks, pings or [alive] * len(ranks)))
    return learners


async def lost(learners: Learners) -> str:
    with pytest.raises(LearnerLost) as raised:
        await learners.save(Path("checkpoint"))
    return str(raised.value)


async def test_the_rank_that_the_others_waited_for_is_named_first_and_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    waited = raises(RuntimeError("Timed out waiting 8000ms for recv operation to complete"))
    first, _, rest = (await lost(learners_of(waited, silent, waited))).partition("\n")
    assert first == (
        "learner-1.save: no answer; "
        "learner-0.save: RuntimeError: Timed out waiting 8000ms for recv operation to complete; "
        "learner-2.save: RuntimeError: Timed out waiting 8000ms for recv operation to complete"
    )
    assert "File a.py, line 3" in rest


async def test_a_dead_rank_is_named_beside_those_that_lost_it() -> None:
    closed = raises(RuntimeError("Connection closed by peer"))
    said = await lost(learners_of(closed, fails(RayActorError(error_msg="the process was killed"))))
    assert "learner-0.save: RuntimeError: Connection closed by peer" in said
    assert "learner-1.save: " in said
    assert "the process was killed" in said


async def test_a_deadline_names_the_ranks_that_let_it_pass() -> None:
    assert await lost(learners_of(silent, silent, deadline_s=0.1)) == (
        "learner-0.save did not answer within 0 s; learner-1.save did not answer within 0 s"
    )


async def test_a_rank_whose_heartbeat_stops_is_lost_long_before_the_deadline_and_named_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.1)
    assert await lost(learners_of(silent, silent, heartbeat_timeout_s=0.2, pings=[alive, silent])) == (
        "learner-1's heartbeat did not answer within 0 s; learner-0.save: no answer"
    )


async def test_a_rank_that_is_busy_for_longer_than_silence_is_not_lost() -> None:
    beats, enough = [], asyncio.Event()

    async def busy() -> object:
        return await asyncio.wait_for(enough.wait(), 60)

    async def beating() -> int:
        beats.append(1)
        if len(beats) == 3:
            enough.set()
        return 1

    await learners_of(busy, heartbeat_timeout_s=0.3, pings=[beating]).save(Path("checkpoint"))
    assert len(beats) >= 3


async def test_what_a_rank_says_by_itself_is_raised_at_once() -> None:
    refused = raises(CheckpointError("the disk is full"))
    with pytest.raises(CheckpointError, match="the disk is full"):
        await learners_of(refused, silent).save(Path("checkpoint"))


async def test_a_lack_of_memory_is_raised_at_once_because_no_restart_changes_it() -> None:
    rank = Rank(3)
    rank.update = lambda *_: torch.empty(2**60, dtype=torch.uint8)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(OutOfMemory) as lacking:
        rank.call("update", None, 0, False)
    assert str(lacking.value).startswith("learner rank 3 has too little memory for update: ")
    assert "1152921504606846976 bytes" in str(lacking.value)
    with pytest.raises(OutOfMemory, match="learner rank 3"):
        await learners_of(raises(lacking.value), silent).save(Path("checkpoint"))


@pytest.mark.parametrize("library", ["CUBLAS", "CUSOLVER", "CUDNN"])
async def test_a_library_of_the_gpu_that_finds_no_room_lacks_memory_too(library: str) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(f"CUDA error: {library}_STATUS_ALLOC_FAILED when calling `{library.lower()}Create(handle)`")

    rank = Rank(2)
    rank.update = full  # type: ignore[method-assign, assignment]
    with pytest.raises(OutOfMemory, match=f"learner rank 2 has too little memory for update: .*{library}_STATUS"):
        rank.call("update", None, 0, False)


async def test_other_errors_of_a_rank_stay_what_they_are() -> None:
    rank = Rank(3)
    with pytest.raises(AttributeError):
        rank.call("nothing")
    rank.update = lambda *_: torch.ones(2) @ torch.ones(3)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(RuntimeError, match="size") as error:
        rank.call("update", None, 0, False)
    assert not isinstance(error.value, OutOfMemory)


@pytest.mark.parametrize(("gpus", "begun"), [(0, ["start"]), (1, ["start", "rehearse"])])
async def test_the_largest_update_is_rehearsed_when_the_ranks_have_started(gpus: int, begun: list[str]) -> None:
    asked: list[str] = []

    async def answer() -> object:
        return "tcp://nowhere:1"

    def remote(_: int, method: str, *__: object) -> Awaitable[object]:
        asked.append(method)
        return answer()

    async def place(*_: object, **__: object) -> Any:
        node, ping = SimpleNamespace(remote=answer), SimpleNamespace(remote=alive)
        return SimpleNamespace(run=SimpleNamespace(remote=remote), node=node, ping=ping)

    cluster = SimpleNamespace(timeline=Timeline(), place=place, reserve=lambda *_: None)
    config = Config().with_values(learner={"ranks": 2, "gpus": gpus}, run={"directory": Path("/gone")})
    learners = Learners(cast(Any, cluster), config, [Path("model")])
    await learners.start()
    assert asked == ["meeting_point", *(method for method in begun for _ in range(2))]


INDEX = raises(IndexError("token id 99999 ≥ vocabulary 42\nmore"))
DIED = fails(RayActorError(error_msg="the process was killed"))


async def restarted(monkeypatch: pytest.MonkeyPatch, *failures: tuple[int, Answer]) -> Learners:
    """Fails at each (rollout, how) in turn and is started again after it; what the last restart raises is raised."""
    learners = learners_of(silent)

    async def start() -> None:
        pass

    monkeypatch.setattr(learners, "start", start)
    monkeypatch.setattr("ray.kill", lambda _: None)
    for rollout, failure in failures:
        learners._ranks, learners._rollout = [rank_of(failure, alive)], rollout
        await lost(learners)
        await learners.restart()
    return learners


@pytest.mark.parametrize("second", [5, 4], ids=["at the same rollout", "at the restarted rank's first one"])
async def test_the_same_error_after_a_restart_is_fatal_at_once(monkeypatch: pytest.MonkeyPatch, second: int) -> None:
    with pytest.raises(LearnerLost) as raised:
        await restarted(monkeypatch, (5, INDEX), (second, INDEX))
    assert str(raised.value) == (
        "Learner rank 0 failed 2 times with the same error: IndexError: token id 99999 ≥ vocabulary 42"
    )


@pytest.mark.parametrize(
    "failures",
    [
        [(5, INDEX), (6, INDEX)],
        [(5, INDEX), (5, raises(IndexError("token id 77 ≥ vocabulary 42")))],
        [(5, INDEX), (5, raises(KeyError("token id 99999 ≥ vocabulary 42")))],
        [(5, DIED), (5, DIED)],
        [(5, INDEX), (5, DIED)],
    ],
    ids=["later", "another message", "another type", "deaths", "an error, then a death"],
)
async def test_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failures: list[tuple[int, Answer]]
) -> None:
    learners = await restarted(monkeypatch, *failures)
    assert learners.status().actors[0].restarts == 2


async def test_a_learner_that_is_out_of_restarts_says_what_it_failed_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LearnerLost) as raised:
        await restarted(monkeypatch, *((rollout, INDEX) for rollout in range(20)))
    limit = Config().learner.restarts
    assert str(raised.value) == (
        f"the learner was lost and is out of restarts (learner.restarts = {limit}): "
        "learner-0.save: IndexError: token id 99999 ≥ vocabulary 42"
    )
