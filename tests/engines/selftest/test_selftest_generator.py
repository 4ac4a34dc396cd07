"""Each check of a generator sees a part that is broken, on a real vLLM."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncGenerator, Sequence

import pytest

from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.weights.weight_update import WeightUpdate
from rlep.selftest.generator_checks import generator, weights
from rlep.selftest.outcome import CheckFailed
from rlep.selftest.synthetic import Rig

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


class Deaf(Sampler):
    """Keeps its own weights."""

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Say that they are loaded."""
        self._loaded = weight_update.version


def test_weights(rig: Rig) -> None:
    with pytest.raises(CheckFailed, match="policy version 1: log-probs differ from the learner's by"):
        weights(rig, sampler=Deaf)
