"""Each check of weights on their way sees a part that is broken, on a real learner rank and a real vLLM where one answers."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from rlep.check.parts.outcome import CheckFailed, call_all_apart
from rlep.check.parts.synthetic import Rig
from rlep.check.parts.transfer_checks import lost_member, second_gpu, weights
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.sampler.engine import Sampler
from rlep.engines.weights.weight_update import WeightUpdate

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 500.0


def apart(check: Any, *given: Any) -> str:
    """The check in a process of its own, as the self-test runs it."""
    return str(call_all_apart(check, [given], deadline_s=DEADLINE_S)[0])


def through(rig: Rig, **settings: Any) -> Rig:
    """The rig with these settings of the generator."""
    generator = rig.config.generator.model_copy(update=settings)
    return dataclasses.replace(rig, config=rig.config.model_copy(update={"generator": generator}))


class Deaf(Sampler):
    """Keeps its own weights."""

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Say that they are loaded."""
        self._loaded = weight_update.version


def test_weights(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match="policy version 1: log-probs differ from the learner's by"):
        apart(weights, rig, LearnerRank, Deaf)


class Silent(Sampler):
    """No engine at all: what the check is told is nothing, and no engine could tell it less."""

    async def start(self, deadline_s: float) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Say nothing."""


class Patient(Silent):
    """Waits for an engine that never answers."""

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Never return."""
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Silent, "the generator was killed in a transfer, and the transfer said 'nothing'"),
        (Patient, "the generator was killed in a transfer, which had not ended after 1 s"),
    ],
)
def test_lost_member(rig: Rig, broken: type[Sampler], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        apart(lost_member, through(rig, transfer_deadline_s=0.5), LearnerRank, broken)


def test_a_member_of_a_group_is_lost_and_another_takes_the_next_version(rig: Rig) -> None:
    assert "killed in a transfer by gloo" in apart(lost_member, through(rig, transfer="gloo"))


@pytest.mark.parametrize(("visible", "second"), [("4,5", "5"), ("GPU-1a,GPU-2b,GPU-3c", "GPU-2b"), ("", "1")])
def test_the_second_gpu_is_the_second_of_those_that_the_job_may_use(
    visible: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert second_gpu() == {"CUDA_VISIBLE_DEVICES": second}
