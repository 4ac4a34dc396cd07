"""What a lost learner says: which rank failed at what, and which rank the others waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError, RayTaskError

import rlep.actors.learners as module
from rlep.actors.learners import Learners
from rlep.actors.timeline import Timeline
from rlep.config_roles import LearnerConfig
from rlep.engines.options import LearnerOptions
from rlep.errors import CheckpointError, LearnerLost

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


def learners_of(*ranks: Answer, deadline_s: float = 60.0) -> Learners:
    cluster = SimpleNamespace(timeline=Timeline())
    learners = Learners(cast(Any, cluster), LearnerConfig(deadline_s=deadline_s), Path("model"), LearnerOptions())
    learners._ranks = [cast(Any, SimpleNamespace(save=SimpleNamespace(remote=lambda _, r=rank: r()))) for rank in ranks]
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


async def test_what_a_rank_says_by_itself_is_raised_at_once() -> None:
    refused = raises(CheckpointError("the disk is full"))
    with pytest.raises(CheckpointError, match="the disk is full"):
        await learners_of(refused, silent).save(Path("checkpoint"))
