"""``replay.group = "replace"``: groups of G, of which the drawn replays were not generated."""

from __future__ import annotations

from rlep.driver.step import run_step
from rlep.driver.wings.refill import refill
from rlep.driver.wings.replacing import replace_groups
from tests.unit.driver.driver_fakes import World, filled_pool, scene_of
from tests.unit.driver.driver_values import G, M, P, answer_of, config_of, prompts_of

PROMPTS = prompts_of(P)
REPLACE = config_of(replay={"count": M, "group": "replace"}, update={"prompts": 2})


async def test_replays_take_the_place_of_the_last_fresh_responses() -> None:
    pool = filled_pool(World(), PROMPTS)
    pool.stored[PROMPTS[1].id] = [answer_of(PROMPTS[1], 0)]  # one stored, M = 2 wanted
    del pool.stored[PROMPTS[2].id]
    scene, added = scene_of(REPLACE, pool=pool), scene_of(config_of(), pool=filled_pool(World(), PROMPTS))
    groups = await replace_groups(scene.step(), PROMPTS)
    assert [(len(group.fresh), len(group.replays)) for group in groups] == [(1, 2), (2, 1), (3, 0), (1, 2)]
    # What is generated are the first samples that the group would have had without replays, seeds included.
    await run_step(added.step(), PROMPTS)
    every = {request.id: request.seed for request in added.generators.asked}
    asked = {request.id: request.seed for request in scene.generators.asked}
    assert len(asked) == 1 + 2 + 3 + 1
    assert asked == {name: seed for name, seed in every.items() if name in asked}
    samples = {prompt.id: [r.sample for r in scene.generators.asked if r.prompt_id == prompt.id] for prompt in PROMPTS}
    assert [samples[prompt.id] for prompt in PROMPTS] == [[0], [0, 1], [0, 1, 2], [0]]
    assert scene.progress.done["rollout"] == 7


async def test_an_update_trains_on_groups_of_g() -> None:
    scene = scene_of(REPLACE, pool=filled_pool(World(), PROMPTS))
    outcome = await run_step(scene.step(), PROMPTS, replace_groups)
    assert [len(batch) for batch in scene.learner.batches] == [2 * G, 2 * G]
    assert [int(batch.replayed.sum()) for batch in scene.learner.batches] == [2 * M, 2 * M]
    assert len(outcome.updates) == 2


async def test_refills_replace_too() -> None:
    config = config_of(replay={"count": M, "group": "replace"}, rollout={"dynamic_sampling": True})
    spare = prompts_of(8, prefix="spare")
    scene = scene_of(config, pool=filled_pool(World(), [*PROMPTS, *spare]))
    groups = await refill(replace_groups)(scene.step(spare=spare), PROMPTS)
    assert groups
    assert all(len(group.members) == G and len(group.replays) == M for group in groups)


async def test_without_replays_in_a_step_all_are_generated() -> None:
    scene = scene_of(REPLACE, pool=filled_pool(World(), PROMPTS))
    groups = await replace_groups(scene.step(replays=0), PROMPTS)
    assert [(len(group.fresh), len(group.replays)) for group in groups] == [(G, 0)] * P
