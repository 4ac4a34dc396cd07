"""Each check of a generator sees a part that is broken, on a real vLLM."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest

from rlep.check.parts.generator_checks import generator, preemption
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig
from rlep.core.errors import WeightSyncError
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import Sampler

pytestmark = [pytest.mark.usefixtures("environment"), pytest.mark.timeout(600)]


class Unseeded(Sampler):
    """Draws with other seeds each time."""

    calls = itertools.count()

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """As the engine does, with a seed of its own."""
        shift = 1000 * next(self.calls)
        changed = [dataclasses.replace(request, seed=request.seed + shift) for request in requests]
        async for some in super().generate(changed, sampling):
            yield some


def test_seeds(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match="of 24 responses changed when sampled again with the same seed"):
        generator(rig, Unseeded)


def test_an_engine_is_tried_without_the_weight_updates_that_nobody_sends(rig: Rig) -> None:
    """With staleness it waited for them; a loaded sampler names a version for each token."""
    stale = dataclasses.replace(rig, config=rig.config.with_values(rollout={"max_staleness": 1}))
    generator(stale)
    with pytest.raises(WeightSyncError, match=r"rollout\.max_staleness"):
        Sampler(rig.model, stale.config).serve_base(0)


class Twice(Sampler):
    """Gives every response twice."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """As the engine does, and again."""
        async for some in super().generate(requests, sampling):
            yield some
            yield some


class Shifted(Sampler):
    """Is off by a hundredth of a nat."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """As the engine does, with other log-probs."""
        async for some in super().generate(requests, sampling):
            yield [dataclasses.replace(one, logprobs=one.logprobs + np.float32(0.01)) for one in some]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Twice, r"24 of 24 requests were not answered once after \d+ preemptions, r0 2 times"),
        (Shifted, r"after \d+ preemptions log-probs differ from the learner's by 0.01 nats on average, allowed 0.0001"),
    ],
)
def test_preemption(rig: Rig, broken: type[Sampler], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        preemption(rig, broken)


def test_a_cache_with_room_for_all_is_no_test_of_preemption(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match="vLLM preempted no request with a KV cache of 64 blocks"):
        preemption(rig, blocks=64)
