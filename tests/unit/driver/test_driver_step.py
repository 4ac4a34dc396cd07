"""One training step behind its ports: what happens when, and what reaches the learner, to the bit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlep.core.errors import MixingError, PoolError, StaleRolloutError, VerifierError
from rlep.core.types import Prompt, UpdateCost, UpdateOutcome
from rlep.driver.rollout import OnPolicyRollouts, deadline_of
from rlep.driver.step import StepOutcome, mix_group, mix_groups, run_step
from rlep.driver.step_metrics import step_metrics, update_metrics
from tests.late_method import LATE
from tests.unit.driver.driver_fakes import FakePool, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import MAX_TOKENS, B, G, M, P, answer_of, batch_bytes, config_of, prompts_of

PROMPTS = prompts_of(P)


def with_pool(order: int | None = None, **sections: dict[str, object]) -> Scene:
    """A scene whose pool has four answers to every prompt."""
    return scene_of(config_of(**sections), pool=filled_pool(World(), PROMPTS), order=order)


async def stepped(scene: Scene, prompts: Sequence[Prompt] = PROMPTS) -> StepOutcome:
    """Run step 0 and look for what it left behind."""
    outcome = await run_step(scene.step(), prompts)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return outcome


def batches(scene: Scene) -> list[bytes]:
    """What was trained on."""
    return [batch_bytes(batch) for batch in scene.learner.batches]


async def test_order_of_events() -> None:
    scene = with_pool()
    await stepped(scene)
    world = scene.world
    happened = [entry.split()[0] for entry in world.happened]
    completions = [at for at, name in enumerate(happened) if name == "completion"]
    assert (len(completions), happened.count("grade"), happened.count("sample")) == (P * G, P, 1)
    assert (happened.count("score"), happened.count("update"), happened.count("publish")) == (P // B, P // B, 1)
    assert happened.index("sample") < completions[0]
    assert happened.index("score") > completions[-1], "the plain step has a barrier after its rollout"
    last_score = len(happened) - 1 - happened[::-1].index("score")
    assert last_score < happened.index("update"), "no update before every set is scored at the same weights"
    assert happened[-1] == "publish"
    assert scene.weights.versions == [1]
    assert scene.learner.rollouts == [0, 0]


async def test_next_step_begins_only_after_publication() -> None:
    scene = with_pool()
    await stepped(scene)
    before = len(scene.world.happened)
    await run_step(scene.step(1), PROMPTS)
    assert scene.world.happened[before - 1] == "publish 1"
    assert scene.weights.versions == [1, 2]
    groups = [len(batch) for batch in scene.learner.batches]
    assert groups == [B * (G + M)] * 4


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("redeliver", [0, 5])
async def test_batches_are_the_same_to_the_bit_in_any_order_of_completion(order: int, redeliver: int) -> None:
    plain, shuffled = with_pool(), with_pool(order=order)
    shuffled.generators.redeliver = redeliver
    await stepped(plain)
    outcome = await stepped(shuffled)
    assert batches(shuffled) == batches(plain)
    groups = [group for ready in outcome.mini_batches for group in ready.groups]
    assert [group.prompt.id for group in groups] == [prompt.id for prompt in PROMPTS]
    for group in groups:
        expected = [f"train/0/{group.prompt.id}/{sample}" for sample in range(G)]
        assert [member.sample_id for member in group.fresh] == expected
    assert [len(group.replays) for group in groups] == [M] * P


async def test_no_replays_equals_a_run_without_a_pool() -> None:
    asked, without = with_pool(replay={"count": 0}), scene_of(config_of(replay={"count": 0}))
    await stepped(asked)
    await stepped(without)
    assert asked.world.count("sample") == 0
    assert batches(asked) == batches(without)
    assert not any(batch.replayed.any() for batch in asked.learner.batches)


async def test_metrics_show_that_every_replay_reached_the_loss() -> None:
    scene = with_pool()
    values = step_metrics(await stepped(scene))
    assert scene.pool is not None
    tokens = sum(len(member.tokens) for member in scene.pool.handed_out)
    assert len(scene.pool.handed_out) == values["replay/trajectories"] == values["loss/trajectories/replay"] == P * M
    assert values["replay/tokens"] == values["loss/tokens/replay"] == tokens == P * M * 3
    fresh = sum(int(batch.sampled_lengths[~batch.replayed].sum()) for batch in scene.learner.batches)
    assert values["rollout/tokens"] == values["loss/tokens/fresh"] == fresh
    assert values["rollout/samples"] == values["loss/trajectories/fresh"] == P * G
    assert values["group/replays"] == [0, 0, P]
    assert (values["pool/hit"], values["pool/short"], values["update/count"]) == (1.0, 0, P // B)
    assert values["logprob/replay_behaviour"] == -0.25
    assert values["weights/logprob_difference"] == 0.125
    assert {name for name in values if name.startswith("time/")} >= {
        "time/step",
        "time/generate",
        "time/verify",
        "time/score",
        "time/update",
        "time/publish",
    }


async def test_short_pool_gives_smaller_groups() -> None:
    world = World()
    stored = {PROMPTS[0].id: [answer_of(PROMPTS[0], 0)], PROMPTS[1].id: [answer_of(PROMPTS[1], n) for n in range(3)]}
    scene = scene_of(pool=FakePool(world, stored))
    values = step_metrics(await stepped(scene))
    assert [len(batch) for batch in scene.learner.batches] == [2 * G + 1 + 2, 2 * G]
    assert values["group/replays"] == [2, 1, 1]
    assert (values["pool/hit"], values["pool/short"]) == (0.5, 3)


async def test_require_refuses_a_short_pool() -> None:
    scene = scene_of(config_of(replay={"require": True}), pool=filled_pool(World(), PROMPTS, answers=1))
    with pytest.raises(MixingError, match="1 replays where 2 are required"):
        await stepped(scene)
    assert scene.world.count("update") == 0


async def test_require_counts_what_was_drawn_not_what_is_left_without_copies_of_fresh_responses() -> None:
    fresh = (await stepped(with_pool())).mini_batches[0].groups[0].fresh
    copy = fresh[0]
    correct = replace(copy, verdict=replace(copy.verdict, status="correct"), finish_reason="stop", birth=0)
    step = scene_of(config_of(replay={"require": True}), pool=filled_pool(World(), PROMPTS)).step()
    stored = answer_of(PROMPTS[0], 1)
    step.asked = frozenset({PROMPTS[0].id})
    group = mix_group(step, PROMPTS[0], fresh, [stored, correct])
    assert group.replays == (stored,)
    with pytest.raises(MixingError, match="0 replays where 1 are required"):
        mix_group(step, PROMPTS[0], fresh, [correct])


async def test_only_groups_that_replays_were_drawn_for_count_as_waiting_for_them() -> None:
    scene = with_pool()
    groups = [group for ready in (await stepped(scene)).mini_batches for group in ready.groups]
    step = scene.step()
    step.asked = frozenset({PROMPTS[1].id})  # as exgrpo chooses
    for prompt, group in zip(PROMPTS, groups, strict=True):
        mix_group(step, prompt, group.fresh, [])
    assert step.accepting == 1


def test_a_rollout_has_time_for_what_it_generates_and_for_the_rollouts_before_it() -> None:
    config = config_of(rollout={"deadline_s": 100.0})
    assert [deadline_of(config, responses) for responses in (1, P * G, 3 * P * G)] == [100, 100, 300]
    ahead = config_of(
        rollout={"deadline_s": 100.0, "max_staleness": 2}, loss={"correction": {"weight": "token", "cap": 2.0}}
    )
    assert [deadline_of(ahead, responses) for responses in (P * G, 3 * P * G)] == [300, 500]


async def test_only_below_leaves_replays_out_where_fresh_answers_succeed() -> None:
    scene = with_pool(replay={"only_below": 0.5})
    scene.verifiers.verdicts = {
        PROMPTS[0].id: ["correct", "wrong", "wrong"],
        PROMPTS[1].id: ["correct", "correct", "wrong"],
        PROMPTS[2].id: ["wrong"] * 3,
        PROMPTS[3].id: ["correct"] * 3,
    }
    outcome = await stepped(scene)
    assert [len(group.replays) for ready in outcome.mini_batches for group in ready.groups] == [2, 0, 2, 0]
    assert step_metrics(outcome)["group/solved_by_replay"] == 0.25


@pytest.mark.parametrize("rule", [{"method": LATE}, {"only_below": 1 / 3}], ids=["method", "share"])
async def test_replays_join_where_no_fresh_response_is_correct(rule: dict[str, object]) -> None:
    scene = with_pool(replay={"count": 2, **rule})
    scene.verifiers.verdicts = {PROMPTS[0].id: ["correct", "wrong", "wrong"], PROMPTS[2].id: ["wrong"] * 3}
    outcome = await stepped(scene)
    groups = [group for ready in outcome.mini_batches for group in ready.groups]
    failed = [not any(member.correct for member in group.fresh) for group in groups]
    assert (failed[0], failed[2]) == (False, True)
    assert [len(group.replays) for group in groups] == [2 * fails for fails in failed]


def test_replays_begin_with_their_step() -> None:
    config = config_of(replay={"count": 2, "start_step": 2}, run={"steps": 4})
    assert [config.replay.count_at(step, 4) for step in range(4)] == [0, 0, 2, 2]


async def test_stale_completion_is_refused_and_nothing_goes_on() -> None:
    scene = with_pool()
    scene.generators.stale = 1
    with pytest.raises(StaleRolloutError, match="rollout from policy 6, step trains 7"):
        await run_step(scene.step(7), PROMPTS)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert scene.world.count("update") == scene.world.count("publish") == 0


async def test_missing_pool_is_named() -> None:
    with pytest.raises(MixingError, match="step 0 wants 2 replays per prompt, but the run has no pool"):
        await stepped(scene_of())


@pytest.mark.parametrize("role", ["verifiers", "pool"])
async def test_errors_arrive_as_themselves(role: str) -> None:
    scene = with_pool()
    error = VerifierError("no verifier is left") if role == "verifiers" else PoolError("the pool is gone")
    getattr(scene, role).fail = error
    with pytest.raises(type(error)) as raised:
        await stepped(scene)
    assert raised.value is error
    assert role == "verifiers" or scene.world.count("completion") < P * G, "an error of the pool ends the generation"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("events", [1, 8, 16, 21, 22])
async def test_cancellation_leaves_no_task(events: int) -> None:
    scene = with_pool()
    running = asyncio.create_task(run_step(scene.step(), PROMPTS))
    while len(scene.world.happened) < events:
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert scene.world.count("publish") == 0


@pytest.mark.parametrize(("mode", "old"), [("recompute", None), ("behaviour", -0.25), ("unit", 0.0)])
async def test_old_logprobs_of_replays(mode: str, old: float | None) -> None:
    scene = with_pool(replay={"old_logprobs": mode})
    outcome = await stepped(scene)
    for ready in outcome.mini_batches:
        replayed = np.repeat(ready.batch.replayed, ready.batch.sampled_lengths)
        assert ready.batch.old_logprobs is not None
        np.testing.assert_array_equal(ready.batch.old_logprobs[~replayed], ready.current_logprobs[~replayed])
        expected = ready.current_logprobs[replayed] if old is None else old
        np.testing.assert_array_equal(ready.batch.old_logprobs[replayed], expected)


async def test_a_response_to_a_prompt_made_otherwise_is_left_out_or_trained_after_this_one() -> None:
    """The pool's responses say template "old", the run has "new"."""

    async def stepped_anew(**rule: object) -> tuple[Scene, StepOutcome]:
        scene = scene_of(config_of(replay=rule), pool=FakePool(World(), stored))
        step = scene.step()
        step.run = replace(step.run, template_digest="new")
        step.trainers = replace(step.trainers, rollouts=OnPolicyRollouts(step.run))
        return scene, await run_step(step, PROMPTS)

    made = {prompt.id: [answer_of(prompt, number) for number in range(4)] for prompt in PROMPTS}
    stored = {
        prompt_id: [replace(member, provenance=replace(member.provenance, template_digest="old")) for member in members]
        for prompt_id, members in made.items()
    }
    _, without = await stepped_anew()
    assert (step_metrics(without)["replay/trajectories"], step_metrics(without)["replay/unfit"]) == (
        0,
        without.step.unfit,
    )
    assert without.step.unfit > 0
    # What a sampler said after another prompt is no log-prob of this one.
    with pytest.raises(MixingError, match=r"not comparable: after a prompt by template 'old'; use .*'recompute'"):
        await stepped_anew(other_template="render", old_logprobs="behaviour")
    rendered, outcome = await stepped_anew(other_template="render")
    plain = with_pool()
    await stepped(plain)
    assert batches(rendered) == batches(plain)
    groups = [group for ready in outcome.mini_batches for group in ready.groups]
    assert {member.provenance.template_digest for group in groups for member in group.fresh} == {"new"}


async def test_mask_truncated_takes_answers_without_eos_out_of_the_loss() -> None:
    scene = with_pool(reward={"mask_truncated": True})
    outcome = await stepped(scene)
    for ready in outcome.mini_batches:
        members = [member for group in ready.groups for member in group.members]
        assert ready.batch.trained.tolist() == [len(member.tokens) < MAX_TOKENS for member in members]
    assert any(not ready.batch.trained.all() for ready in outcome.mini_batches)


async def test_linear_schedule_lowers_the_replays() -> None:
    config = config_of(replay={"schedule": "linear"})
    counts = [config.replay.count_at(step, config.run.steps) for step in range(5)]
    assert counts == [2, 2, 1, 1, 0]  # 2 - step/2, rounded half up
    scene = scene_of(config, pool=filled_pool(World(), PROMPTS))
    for step, count in enumerate(counts):
        groups = await mix_groups(scene.step(step, replays=count), PROMPTS)
        assert {len(group.replays) for group in groups} == {count}
    assert scene.world.count("sample") == 4


def test_the_parts_of_the_loss_add_up_to_it_where_updates_were_skipped() -> None:
    def update(loss: float, fresh: float, replay: float | None, skipped: str = "") -> UpdateOutcome:
        sources = {"fresh/tokens": 6.0, "fresh/trajectories": 2.0, "fresh/loss": fresh}
        sources |= {"fresh/advantage_mass": 1.0, "fresh/ratio_max": 1.0}
        if replay is not None:
            sources |= {name.replace("fresh", "replay"): value for name, value in sources.items()}
            sources["replay/loss"] = replay
        return UpdateOutcome(loss, 1.0, 0.5, skipped, sources)

    nothing = UpdateOutcome(0.0, 0.0, 0.5, "no tokens", {})
    torn = update(math.nan, math.nan, math.nan, "non-finite gradient")
    values = update_metrics([update(0.5, 0.25, 0.25), nothing, update(1.0, 1.0, None), torn])
    assert values["loss/policy"] == (0.5 + 1.0) / 2
    assert (values["loss/part/fresh"], values["loss/part/replay"]) == ((0.25 + 1.0) / 2, 0.25 / 2)
    assert (values["update/count"], values["update/skipped"]) == (2, 2)


def test_kl_and_entropy_of_a_step_are_means_over_the_tokens_on_which_they_act() -> None:
    # Two updates: the policy's loss has 6 and 0 tokens (all groups of the second are constant), KL and entropy 10 and 30.
    policy = {"fresh/tokens": 6.0, "fresh/trajectories": 2.0, "fresh/advantage_mass": 1.0, "fresh/ratio_max": 1.0}
    first = policy | {"fresh/reference_tokens": 10.0, "fresh/reference_kl": 0.2, "fresh/loss": 0.5}
    first |= {"fresh/entropy_tokens": 10.0, "fresh/entropy": 2.0, "fresh/old_kl": 0.125}
    second = {"fresh/tokens": 0.0, "fresh/trajectories": 0.0, "fresh/loss": 0.25}
    second |= {"fresh/reference_tokens": 30.0, "fresh/reference_kl": 0.4, "fresh/entropy_tokens": 30.0}
    second |= {"fresh/entropy": 1.0}
    values = update_metrics([UpdateOutcome(0.5, 1.0, 0.5, "", part) for part in (first, second)])
    assert values["update/reference_kl/fresh"] == pytest.approx((10 * 0.2 + 30 * 0.4) / 40)
    assert values["update/entropy/fresh"] == pytest.approx((10 * 2 + 30 * 1) / 40)
    assert values["update/approx_kl/fresh"] == 0.125
    alone = update_metrics([UpdateOutcome(0.25, 1.0, 0.5, "", second)])
    assert alone["update/reference_kl/fresh"] == pytest.approx(0.4)
    assert alone["loss/part/fresh"] == 0.25
    assert "update/approx_kl/fresh" not in alone


def test_speed_and_memory_of_updates_by_hand() -> None:
    # 300 tokens and 9e9 operations in 1.5 s, on devices that can do 24e9 a second.
    first = UpdateCost(tokens=100, seconds=0.5, model_flops=3e9, peak_flops=24e9, peak_memory_bytes=7)
    second = UpdateCost(tokens=200, seconds=1.0, model_flops=6e9, peak_flops=24e9, peak_memory_bytes=9)
    skipped = UpdateOutcome(0.0, 0.0, 0.5, "no tokens", {})
    values = update_metrics([UpdateOutcome(1.0, 2.0, 0.5, "", {}, cost) for cost in (first, second)] + [skipped])
    assert values["update/tokens_per_second"] == 200.0
    assert values["update/flops_per_second"] == 6e9
    assert values["update/flop_utilization"] == 0.25
    assert values["update/peak_memory"] == 9
    unknown = update_metrics([UpdateOutcome(1.0, 2.0, 0.5, "", {}, replace(first, peak_flops=0.0))])
    assert "update/flop_utilization" not in unknown
