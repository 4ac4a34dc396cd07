"""A streamed step: sets are trained while later groups are written, and in fixed order nothing else differs, to the bit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rlep.config.schema import Config
from rlep.core.errors import ConfigError, LearnerLost
from rlep.core.jsonl import read_lines
from rlep.core.types import Completion, Request, Sampling
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.train import Training, rlep_step
from tests.unit.driver_fakes import FakeGenerators, Scene, World, data_of, filled_pool, scene_of
from tests.unit.driver_values import BASE, G, M, batch_bytes, config_of, prompt_set, prompts_of

SETS = 4
PROMPTS = prompts_of(2 * SETS)


def config_with(stream: str, **update: object) -> Config:
    """Eight prompts in four updates."""
    return config_of(rollout={"prompts": len(PROMPTS)}, update={"stream": stream} | update)


def scene_with(stream: str, order: int | None = None, **update: object) -> Scene:
    """A scene whose pool has four answers to every prompt."""
    return scene_of(config_with(stream, **update), pool=filled_pool(World(), PROMPTS), order=order)


async def stepped(scene: Scene, number: int = 0) -> StepOutcome:
    """Make a step and look for what it left behind."""
    outcome = await run_step(scene.step(number), PROMPTS)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return outcome


def trained_on(scene: Scene) -> list[bytes]:
    """Every batch, to the bit."""
    return [batch_bytes(batch) for batch in scene.learner.batches]


@pytest.mark.parametrize("order", [None, *range(6)])
@pytest.mark.parametrize("redeliver", [0, 7])
async def test_in_fixed_order_weights_are_those_of_the_synchronous_step_to_the_bit(
    order: int | None, redeliver: int
) -> None:
    synchronous, streamed = scene_with("off"), scene_with("fixed", order)
    streamed.generators.redeliver = redeliver
    for number in range(2):
        expected, outcome = await stepped(synchronous, number), await stepped(streamed, number)
        assert outcome.updates == expected.updates
        assert [update.skipped for update in outcome.updates] == [""] * SETS
    assert trained_on(streamed) == trained_on(synchronous)
    assert streamed.learner.state == synchronous.learner.state != BASE
    assert streamed.learner.rollouts == synchronous.learner.rollouts


async def test_updates_run_while_later_groups_are_written_and_weights_go_out_once_at_the_end() -> None:
    scene = scene_with("fixed")
    outcome = await stepped(scene)
    happened = [entry.split()[0] for entry in scene.world.happened]
    completions = [at for at, name in enumerate(happened) if name == "completion"]
    updates = [at for at, name in enumerate(happened) if name == "update"]
    scores = [at for at, name in enumerate(happened) if name == "score"]
    early = sum(at < completions[-1] for at in updates)
    assert early == SETS - 1, "in this order of completions only the last set has nothing to overlap with"
    assert all(score < update for score, update in zip(scores, updates, strict=True))
    assert scores[1] > updates[0], "so the second set was scored after the weights had changed"
    assert (happened.count("publish"), happened[-1]) == (1, "publish")
    assert step_metrics(outcome)["update/early"] == early


async def test_a_set_waits_for_the_sets_before_it() -> None:
    scene = scene_with("fixed")
    scene.generators.redeliver = 1  # the very first completion comes last
    await stepped(scene)
    happened = [entry.split()[0] for entry in scene.world.happened]
    last_completion = len(happened) - 1 - happened[::-1].index("completion")
    assert happened.index("score") < last_completion < happened.index("update")


async def test_completion_order_trains_each_group_once_in_the_order_they_complete() -> None:
    scene = scene_with("completion", order=3)
    outcome = await stepped(scene)
    ready: list[str] = []
    missing = Counter({prompt.id: G for prompt in PROMPTS})
    for entry in scene.world.happened:
        if entry.startswith("completion"):
            prompt_id = entry.split()[1].split("/")[2]
            missing[prompt_id] -= 1
            ready += [prompt_id] if not missing[prompt_id] else []
    assert ready != [prompt.id for prompt in PROMPTS]
    position = {prompt.id: number for number, prompt in enumerate(PROMPTS)}
    expected = [sorted(ready[start : start + 2], key=lambda one: position[one]) for start in range(0, len(ready), 2)]
    assert [[group.prompt.id for group in one.groups] for one in outcome.sets] == expected


@pytest.mark.parametrize(("stream", "prompts", "kept"), [("off", 2, False), ("fixed", 8, False), ("fixed", 2, True)])
async def test_the_first_weights_are_kept_only_where_something_is_scored_later(
    stream: str, prompts: int, kept: bool
) -> None:
    scene = scene_with(stream, prompts=prompts)
    await stepped(scene)
    assert scene.learner.kept == (BASE if kept else None)


class Recording(FakeGenerators):
    """Remembers how many requests it was told to hold at once."""

    told: list[int | None]

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float, in_flight: int | None = None
    ) -> AsyncIterator[Completion]:
        self.told = [*getattr(self, "told", []), in_flight]
        async for completion in super().generate(requests, sampling, deadline_s=deadline_s):
            yield completion


async def trained(directory: Path, scene: Scene) -> None:
    """A whole run of four steps."""
    facts = Facts("train", "model", "tok", prompt_set(len(PROMPTS)).digest)
    store = RunDirectory(directory, scene.config, facts)
    try:
        data = data_of(prompt_set(len(PROMPTS)), ())
        await Training(scene.run, scene.trainers, data, store, rlep_step).run()
    finally:
        store.close()


@pytest.mark.parametrize("lost", ["score/1", "score/7", "update/0", "update/2", "update/6", "update/13"])
async def test_a_learner_lost_in_the_middle_of_a_streamed_step_costs_nothing_but_time(
    tmp_path: Path, lost: str
) -> None:
    undisturbed, streamed = scene_with("off"), scene_with("fixed")
    streamed.world.lose_learner_at, streamed.learner.restarts = (lost,), 1
    await trained(tmp_path / "off", undisturbed)
    await trained(tmp_path / "fixed", streamed)
    assert streamed.learner.restarts == 0
    assert streamed.learner.state == undisturbed.learner.state
    lines = [list(read_lines(tmp_path / name / "metrics.jsonl")) for name in ("off", "fixed")]
    for name in ("loss/tokens/fresh", "loss/tokens/replay", "update/grad_norm", "logprob/fresh", "rollout/tokens"):
        expected, found = ([line["metrics"][name] for line in each] for each in lines)
        assert found == expected, name


async def test_the_number_in_flight_is_a_choice_among_whole_sets_and_recorded(tmp_path: Path) -> None:
    scene = scene_with("fixed")
    scene.generators = Recording(scene.world)
    scene.weights.generators = scene.generators
    await trained(tmp_path, scene)
    told = [line["metrics"]["rollout/in_flight"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert scene.generators.told == told
    assert told[:3] == [SETS * 2 * G] * 3, "the whole step: once to warm up, twice to measure"
    assert set(told) <= {2 * G, 4 * G, 8 * G}


async def test_a_failing_update_ends_the_rollout_at_once() -> None:
    scene = scene_with("fixed")
    scene.world.lose_learner_at = ("update/0",)
    with pytest.raises(LearnerLost, match="rank 1 died"):
        await stepped(scene)
    assert scene.world.count("completion") < len(PROMPTS) * G
    assert scene.world.count("publish") == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("turns", [5, 20, 40, 60])
async def test_cancellation_leaves_no_task(turns: int) -> None:
    scene = scene_with("fixed")
    running = asyncio.create_task(run_step(scene.step(), PROMPTS))
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert scene.world.count("publish") == 0


def test_streams_and_refills_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"update\.stream = fixed with rollout\.dynamic_sampling"):
        config_of(rollout={"dynamic_sampling": True}, update={"stream": "fixed"}, replay={"count": M})
