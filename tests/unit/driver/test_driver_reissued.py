"""What generators did again is counted step by step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlep.core.jsonl import read_lines
from rlep.core.types import Completion, Reissued, Request, Sampling
from tests.unit.driver.driver_fakes import FakeGenerators, FakeWeights, scene_of
from tests.unit.driver.driver_values import config_of, prompt_set, prompts_of

TRAIN = prompt_set(10)


@dataclass(eq=False)
class Repeating(FakeGenerators):
    """Does some of the work of each rollout again."""

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        self.reissued += Reissued(retried=1, dropped=2)
        async for one in super().generate(requests, sampling, deadline_s=deadline_s):
            yield one


async def test_a_line_counts_what_was_re_dispatched_in_its_own_step(tmp_path: Path) -> None:
    scene = scene_of(config_of(replay={"count": 0}))
    generators = Repeating(scene.world)
    scene = replace(scene, generators=generators, weights=FakeWeights(scene.world, scene.learner, generators))
    held_out = prompts_of(1, prefix="held")  # evaluated after every other step: that is no step's work
    await scene.train(tmp_path, TRAIN, held_out)
    expected = {"rollout/retried": 1, "rollout/dropped": 2}
    lines = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    names = ("rollout/retried", "rollout/dropped")
    assert [{name: line[name] for name in names if name in line} for line in lines] == [expected] * 4
