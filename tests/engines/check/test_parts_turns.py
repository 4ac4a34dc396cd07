"""Turns of learner and generator on one device, where what a sleep loses is lost: each read of it is seen."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
import pytest

from rlep.check.finding import CheckSkipped
from rlep.check.parts.forgetful_worker import EVERY_BIT, ForgetfulWorkerExtension
from rlep.check.parts.outcome import CheckFailed, call_all_apart
from rlep.check.parts.synthetic import Rig
from rlep.check.parts.turns_check import GROWTH_BYTES, Asleep, Forgetful, turns
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.weights.weight_update import WeightUpdate

pytestmark = pytest.mark.timeout(600)
GIB = 2**30


@pytest.fixture
def shared(rig: Rig) -> Rig:
    """The rig with one device for both."""
    return dataclasses.replace(rig, config=rig.config.with_values(cluster={"placement": "colocated"}))


def apart(rig: Rig, *given: object) -> str:
    """The check in a process of its own, as a user's."""
    return str(call_all_apart(turns, [(rig, *given)], deadline_s=500.0)[0])


def test_devices_apart_take_no_turns(rig: Rig) -> None:
    with pytest.raises(
        CheckSkipped, match=r"cluster\.placement = split: learner and generators have devices of their own"
    ):
        turns(rig)


def test_every_weight_is_new_after_a_sleep_that_loses_all(shared: Rig) -> None:
    assert apart(shared).startswith("2 turns of one device, sampled log-probs within ")


class Dreaming(Forgetful):
    """Wakes with what its sleep left."""

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Say that they are loaded."""
        await self._running().resume_generation()
        self._loaded = weight_update.version


class LosesBuffers(ForgetfulWorkerExtension):
    """A worker whose buffers nobody saved; the rotary embedding's tables are one."""

    def forget(self) -> None:
        """Overwrite them too."""
        super().forget()
        for buffer in self.model_runner.model.buffers():
            buffer.untyped_storage().fill_(EVERY_BIT)


class Unsaved(Forgetful):
    """Has a worker that loses its buffers."""

    worker = f"{LosesBuffers.__module__}.{LosesBuffers.__qualname__}"


@pytest.mark.parametrize("broken", [Dreaming, Unsaved])
def test_a_read_of_memory_that_did_not_survive_is_seen(broken: type[Forgetful], shared: Rig) -> None:
    with pytest.raises(
        CheckFailed, match="policy version 1: log-probs differ from the learner's by nan nats on average"
    ):
        apart(shared, LearnerRank, broken)


class Louder(Forgetful):
    """Is off by a hundredth of a nat, once it has slept."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """As the engine does, with other log-probs."""
        async for batch in super().generate(requests, sampling):
            shift = np.float32(0.01 if batch[0].policy_version else 0.0)
            yield [dataclasses.replace(answer, logprobs=answer.logprobs + shift) for answer in batch]


def test_what_is_sampled_after_a_sleep_is_held_against_the_learner(shared: Rig) -> None:
    with pytest.raises(CheckFailed, match=r"after 1 turns log-probs sampled differ from the learner's by 0.01 nats"):
        apart(shared, LearnerRank, Louder)


def test_what_both_keep_asleep_leaves_room_for_a_whole_model() -> None:
    # 80 GiB: a rank of 61 beside 3 of the generator, and a generator of 0.9 · 80 = 72 beside 2 of the rank.
    kept = Asleep(80 * GIB, (0, 3 * GIB - GROWTH_BYTES, 3 * GIB), 2 * GIB).check(61 * GIB, 0.9)
    assert kept == "; asleep the generator keeps 3.0 GiB and the rank 2.0 GiB, planned 2.0 GiB each"


@pytest.mark.parametrize(
    ("asleep", "message"),
    [
        (
            Asleep(24 * GIB, (4 * GIB,) * 3, GIB),
            "a rank of the whole model needs 21.0 GiB beside it, the GPU has 24.0 GiB",
        ),
        (Asleep(24 * GIB, (GIB,) * 3, 5 * GIB), "generator.memory_utilization = 0.8 leaves it 4.8 GiB"),
        (
            Asleep(80 * GIB, (0, GIB, GIB + GROWTH_BYTES + 1), GIB),
            "keeps more each time: 0.0 KiB, 1.0 GiB, 1.3 GiB",
        ),
    ],
)
def test_too_little_room_for_the_other_side_is_said(asleep: Asleep, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        asleep.check(21 * GIB, 0.8)


def test_a_generator_of_several_workers_is_tried_with_one(rig: Rig) -> None:
    wide: dict[str, Any] = {
        "generator": {"count": 4, "tensor_parallel": 2},
        "learner": {"ranks": 8},
        "cluster": {"placement": "colocated"},
    }
    config = dataclasses.replace(rig, config=rig.config.with_values(**wide)).sampler(0.5)
    assert (config.generator.count, config.generator.tensor_parallel, config.learner.ranks) == (1, 1, 1)
