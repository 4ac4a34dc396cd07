"""A streamed step updates while later responses are generated; the plain step has the same result, to the bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlep.core.errors import ConfigError, LearnerLost
from rlep.core.jsonl import read_lines
from rlep.driver.run_state import tokens_computed
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.streamed import stream_step
from tests.unit.driver.driver_fakes import Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import BASE, G, batch_bytes, config_of, prompt_set, prompts_of

SETS = 4
PROMPTS = prompts_of(2 * SETS)


def scene_with(*, stream: bool, order: int | None = None, epochs: int = 1) -> Scene:
    """Eight prompts in four updates; the pool has four answers to every prompt."""
    config = config_of(rollout={"prompts": len(PROMPTS)}, update={"stream": stream, "epochs": epochs})
    return scene_of(config, pool=filled_pool(World(), PROMPTS), order=order)


async def stepped(scene: Scene, number: int = 0) -> StepOutcome:
    """Make the config's step and look for what it left behind."""
    make = stream_step if scene.config.update.stream else run_step
    outcome = await make(scene.step(number), PROMPTS)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return outcome


def metrics_of(outcome: StepOutcome) -> dict[str, object]:
    """What the step records, without what a clock says."""
    timed = ("time/", "rollout/tokens_per_second")
    return {name: value for name, value in step_metrics(outcome).items() if not name.startswith(timed)}


def trained_on(scene: Scene) -> list[bytes]:
    """Every batch, to the bit."""
    return [batch_bytes(batch) for batch in scene.learner.batches]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("order", [None, *range(6)])
@pytest.mark.parametrize("redeliver", [0, 7])
async def test_both_steps_have_the_same_result_to_the_bit_whatever_completes_first(
    stream: bool, order: int | None, redeliver: int
) -> None:
    expected, scene = scene_with(stream=False), scene_with(stream=stream, order=order)
    scene.generators.redeliver = redeliver
    for number in range(2):
        outcomes = [await stepped(one, number) for one in (expected, scene)]
        assert outcomes[0].updates == outcomes[1].updates
        assert [update.skipped for update in outcomes[1].updates] == [""] * SETS
        assert metrics_of(outcomes[0]) == metrics_of(outcomes[1])
        assert outcomes[0].step.visits == outcomes[1].step.visits
    assert trained_on(scene) == trained_on(expected)
    assert scene.learner.state == expected.learner.state != BASE
    assert scene.learner.rollouts == expected.learner.rollouts


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_each_epoch_takes_the_same_mini_batches_in_order_with_the_same_old_log_probs(stream: bool) -> None:
    scene = scene_with(stream=stream, epochs=3)
    outcome = await stepped(scene)
    once = scene_with(stream=False)
    await stepped(once)
    assert trained_on(scene) == trained_on(once) * 3
    assert scene.learner.rollouts == [0] * SETS * 3
    happened = [entry.split()[0] for entry in scene.world.happened]
    assert (happened.count("score"), happened.count("update"), happened.count("publish")) == (SETS, SETS * 3, 1)
    values = metrics_of(outcome)
    assert (values["update/count"], len(outcome.batches)) == (SETS * 3, SETS)
    assert values["loss/trajectories/fresh"] == 3 * len(PROMPTS) * G
    fresh = sum(
        len(member.tokens) for ready in outcome.mini_batches for group in ready.groups for member in group.fresh
    )
    assert values["loss/tokens/fresh"] == 3 * fresh, "as the table of metrics says: in each pass"
    assert scene.config.with_values(update={"unit": "updates"}).schedule_end == scene.config.run.steps * SETS * 3
    assert tokens_computed(outcome)["trained"] == 3 * sum(len(batch.tokens) for batch in outcome.batches)


async def test_updates_run_during_the_rollout_and_weights_are_published_once_at_the_end() -> None:
    scene = scene_with(stream=True)
    await stepped(scene)
    happened = [entry.split()[0] for entry in scene.world.happened]
    completions = [at for at, name in enumerate(happened) if name == "completion"]
    updates = [at for at, name in enumerate(happened) if name == "update"]
    scores = [at for at, name in enumerate(happened) if name == "score"]
    early = sum(at < completions[-1] for at in updates)
    assert early == SETS - 1, "in this order of completions only the last set has nothing to overlap with"
    assert all(score < update for score, update in zip(scores, updates, strict=True))
    assert scores[1] > updates[0], "so the second set was scored after the weights had changed"
    assert (happened.count("publish"), happened[-1]) == (1, "publish")


async def test_a_mini_batch_is_scored_when_complete_and_updated_on_after_those_before_it() -> None:
    scene = scene_with(stream=True)
    scene.generators.redeliver = 1  # the very first completion comes last
    await stepped(scene)
    happened = [entry.split()[0] for entry in scene.world.happened]
    last_completion = len(happened) - 1 - happened[::-1].index("completion")
    assert happened.index("score") < last_completion < happened.index("update")


@pytest.mark.parametrize("lost", ["score/1", "score/7", "update/0", "update/2", "update/6", "update/13"])
async def test_a_learner_lost_in_the_middle_of_a_streamed_step_costs_nothing_but_time(
    tmp_path: Path, lost: str
) -> None:
    undisturbed, streamed = scene_with(stream=False), scene_with(stream=True)
    streamed.world.lose_learner_at, streamed.learner.restarts = (lost,), 1
    await undisturbed.train(tmp_path / "off", prompt_set(len(PROMPTS)))
    await streamed.train(tmp_path / "fixed", prompt_set(len(PROMPTS)))
    assert streamed.learner.restarts == 0
    assert streamed.learner.state == undisturbed.learner.state
    lines = [list(read_lines(tmp_path / name / "metrics.jsonl")) for name in ("off", "fixed")]
    for name in ("loss/tokens/fresh", "loss/tokens/replay", "update/grad_norm", "logprob/fresh", "rollout/tokens"):
        expected, found = ([line["metrics"][name] for line in each] for each in lines)
        assert found == expected, name


async def test_a_failing_update_ends_the_rollout_at_once() -> None:
    scene = scene_with(stream=True)
    scene.world.lose_learner_at = ("update/0",)
    with pytest.raises(LearnerLost, match="rank 1 died"):
        await stepped(scene)
    assert scene.world.count("completion") < len(PROMPTS) * G
    assert scene.world.count("publish") == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("events", [1, 12, 30, 42])
async def test_cancellation_leaves_no_task(events: int) -> None:
    scene = scene_with(stream=True)
    running = asyncio.create_task(stream_step(scene.step(), PROMPTS))
    while len(scene.world.happened) < events:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert scene.world.count("publish") == 0


def test_streams_and_refills_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"update\.stream = true with rollout\.dynamic_sampling"):
        config_of(rollout={"dynamic_sampling": True}, update={"stream": True})
