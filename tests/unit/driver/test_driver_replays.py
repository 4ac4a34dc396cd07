"""Replays that another strategy chose, and failed ones: what reaches the groups, and that a resumed run chooses alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import MixingError
from rlep.core.types import Trajectory, Verdict
from rlep.driver.replays import draw_replays
from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics
from tests.unit.driver.driver_fakes import FakePool, Killed, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import BASE, G, M, P, answer_of, config_of, prompt_set, prompts_of

PROMPTS = prompts_of(P)
TRAIN = prompt_set(8)


def scene_with(answers: list[Trajectory], selection: str) -> Scene:
    """A pool with ``answers`` (given for the first prompt) for that prompt, and nothing for the others."""
    pool = FakePool(World(), {PROMPTS[0].id: answers})
    return scene_of(config_of(replay={"selection": selection}), pool=pool)


async def chosen(scene: Scene, step: int = 0, **used: int) -> list[int]:
    """First tokens (500 + number) of what the first prompt is given, as numbers."""
    drawn = await draw_replays(replace(scene.step(step), used=used), PROMPTS)
    assert all(not drawn.get(prompt.id) for prompt in PROMPTS[1:])
    return [int(member.tokens[0]) - 500 for member in drawn[PROMPTS[0].id]]


def wrong(number: int) -> Trajectory:
    """A complete answer to the first prompt that is not correct."""
    return replace(answer_of(PROMPTS[0], number), verdict=Verdict("wrong", "3", "math", "1"))


async def test_shortest_takes_the_shortest() -> None:
    answers = [answer_of(PROMPTS[0], number, length=length) for number, length in enumerate((5, 3, 6, 2))]
    assert await chosen(scene_with(answers, "shortest")) == [3, 1]


async def test_recent_takes_the_newest() -> None:
    answers = [replace(answer_of(PROMPTS[0], number), created_at=float(at)) for number, at in enumerate((7, 9, 1, 8))]
    assert await chosen(scene_with(answers, "recent")) == [1, 3]


async def test_diverse_prefers_other_endings() -> None:
    same = [answer_of(PROMPTS[0], 0, length=length) for length in (70, 71, 72)]
    endings = [replace(member, tokens=np.concatenate([member.tokens[:6], np.arange(64)])) for member in same]
    for number, member in enumerate(endings):
        member.tokens[0] = 500 + number
    other = answer_of(PROMPTS[0], 9)
    for step in range(8):
        assert 9 in await chosen(scene_with([*endings, other], "diverse"), step)


@pytest.mark.parametrize(("selection", "expected"), [("most-probable", [1, 2]), ("least-probable", [0, 3])])
async def test_probability_is_that_under_the_steps_weights(selection: str, expected: list[int]) -> None:
    # The fake's log-prob of token t is -((7 t + b) mod 100) / 100 with b = 98, the first byte of its weights.
    # Answers of one token, 500 + n: 7 · 500 + 98 = 3598, so they score -.98 for n = 0, -.05, -.12, -.19 for n = 1, 2, 3.
    assert BASE[0] == 98
    answers = [answer_of(PROMPTS[0], number, length=1) for number in range(4)]
    scene = scene_with(answers, selection)
    assert await chosen(scene) == expected
    assert scene.world.happened == ["sample 0", "score 4"]


async def test_least_used_takes_what_earlier_steps_did_not() -> None:
    answers = [answer_of(PROMPTS[0], number) for number in range(4)]
    used = {answers[0].content_id: 1, answers[2].content_id: 2, answers[3].content_id: 1}
    scene = scene_with(answers, "least-used")
    picks = [await chosen(scene, step, **used) for step in range(40)]
    assert {first for first, _ in picks} == {1}
    assert {second for _, second in picks} == {0, 3}


async def trained(directory: Path, scene: Scene) -> dict[str, int]:
    """How often each answer was replayed, by the last checkpoint."""
    return dict((await scene.train(directory, TRAIN)).state.used)


async def test_use_is_counted_over_the_run_and_survives_being_killed(tmp_path: Path) -> None:
    config = config_of(replay={"selection": "least-used"}, run={"steps": 4})

    def scene(kill_at: int | None = None) -> Scene:
        return scene_of(config, pool=filled_pool(World(kill_at=kill_at), TRAIN.prompts))

    whole = scene()
    used = await trained(tmp_path / "whole", whole)
    assert sum(used.values()) == 4 * P * M
    # 4 steps of 4 prompts are two epochs of 8: each prompt comes twice and has 4 answers, of which each comes once.
    assert set(used.values()) == {1}
    assert len(used) == 4 * len(TRAIN.prompts)
    events = len(whole.world.happened)
    for kill_at in range(20, events, 23):
        home = tmp_path / str(kill_at)
        with pytest.raises(Killed):
            await trained(home, scene(kill_at))
        assert await trained(home, scene()) == used


async def test_failed_answers_join_the_group_with_their_own_reward() -> None:
    right = [answer_of(PROMPTS[0], number) for number in range(4)]
    scene = scene_of(
        config_of(replay={"failed": 1}),
        pool=FakePool(World(), {PROMPTS[0].id: right}),
    )
    failures = FakePool(scene.world, {PROMPTS[0].id: [wrong(7), wrong(8)]})
    scene.failures = failures
    outcome = await run_step(scene.step(), PROMPTS)
    groups = [group for ready in outcome.mini_batches for group in ready.groups]
    assert [len(group.members) for group in groups] == [G + M + 1, G, G, G]
    assert [member.correct for member in groups[0].replays] == [True, True, False]
    assert outcome.mini_batches[0].rewards.scores[G : G + M + 1].tolist() == [1.0, 1.0, -1.0]
    values = step_metrics(outcome)
    assert values["replay/trajectories"] == 3
    assert values["replay/failed"] == 1
    assert values["replay/reward"] == pytest.approx(1 / 3)
    assert values["group/replays"] == [3, 0, 0, 1]
    assert scene.world.count("sample") == 2


async def test_without_replays_no_pool_is_asked_for_failures() -> None:
    scene = scene_of(config_of(replay={"failed": 1}), pool=filled_pool(World(), PROMPTS))
    assert await draw_replays(scene.step(replays=0), PROMPTS) == {}
    assert scene.world.happened == []


async def test_a_run_without_the_pool_it_needs_is_refused() -> None:
    scene = scene_of(config_of(replay={"failed": 1}), pool=filled_pool(World(), PROMPTS))
    with pytest.raises(MixingError, match="no pool for them"):
        await draw_replays(scene.step(), PROMPTS)


async def test_a_step_leaves_out_and_counts_what_it_cannot_train_on() -> None:
    """What others put into a shared pool does not end a run."""
    beyond = replace(answer_of(PROMPTS[0], 0), tokens=np.array([99_999, 2], np.int32), logprobs=None)
    scene = scene_with([beyond, answer_of(PROMPTS[0], 1)], "uniform")
    step = replace(scene.step(2), run=replace(scene.run, vocabulary=10_000))
    drawn = await draw_replays(step, PROMPTS)
    assert [member.content_id for member in drawn[PROMPTS[0].id]] == [answer_of(PROMPTS[0], 1).content_id]
    assert step.unfit == 1
    (note,) = scene.progress.notes
    assert note.startswith(
        f"step {step.number}: 1 replay left out, which this run cannot train on: prompt {PROMPTS[0].id}"
    )
    assert note.endswith("token id 99999 ≥ vocabulary 10000")
