"""Steps with dynamic sampling: what they train on, and what they report of all that they sampled."""

from __future__ import annotations

import pytest

from rlep.core.types import Group, Prompt, Status
from rlep.driver.step import StepOutcome, mix_groups, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.refill import refill
from tests.unit.driver.driver_fakes import Scene, scene_of
from tests.unit.driver.driver_values import P, config_of, prompts_of


def dynamic(statuses: str, spare: int, limit: int = 4) -> tuple[Scene, tuple[Prompt, ...]]:
    """P prompts and ``spare`` further ones; prompt i is solved always (+), never (-) or sometimes (~)."""
    everyone = prompts_of(P + spare)
    scene = scene_of(config_of(rollout={"dynamic_sampling": True, "refill_limit": limit}, replay={"count": 0}))
    verdicts: dict[str, list[Status]] = {
        "+": ["correct"] * 3,
        "-": ["wrong"] * 3,
        "~": ["correct", "wrong", "wrong"],
    }
    scene.verifiers.verdicts = {prompt.id: verdicts[kind] for prompt, kind in zip(everyone, statuses, strict=True)}
    return scene, everyone


async def refilled_step(scene: Scene, everyone: tuple[Prompt, ...]) -> tuple[StepOutcome, list[Group]]:
    outcome = await run_step(scene.step(spare=everyone), everyone[:P], refill(mix_groups))
    return outcome, [group for ready in outcome.mini_batches for group in ready.groups]


async def test_dynamic_sampling_refills_until_p_groups_have_a_signal() -> None:
    scene, everyone = dynamic("~+~-" + "~-~~", spare=4)
    outcome, groups = await refilled_step(scene, everyone)
    # 2 of 4 kept: 2 missing at a share of 1/2 ask for 4 more, of which the first two with a signal are used
    assert [group.prompt.question for group in groups] == ["q0", "q2", "q4", "q6"]
    values = step_metrics(outcome)
    assert (values["selection/rounds"], values["selection/discarded"]) == (2, 3)
    assert values["loss/trajectories/fresh"] == 3 * P


async def test_dynamic_sampling_reports_all_that_was_sampled_beside_what_was_kept() -> None:
    scene, everyone = dynamic("~+~-" + "~-~~", spare=4)
    outcome, _ = await refilled_step(scene, everyone)
    members = [member for group in outcome.step.unused for member in group.fresh]
    members += [member for one in outcome.mini_batches for group in one.groups for member in group.fresh]
    outcome.step.clock.seconds["generate"] = 2.0
    values = step_metrics(outcome)
    assert (values["rollout/prompts"], values["rollout/samples"]) == (8, 24)
    assert values["rollout/accuracy"] == pytest.approx((5 * 1 + 3) / 24)  # five groups of one in three, one of three
    assert values["selection/accuracy"] == pytest.approx(1 / 3)  # of the four groups that the step trains on
    assert sum(values[f"verifier/status/{status}"] for status in ("correct", "wrong")) == 24  # type: ignore[misc]
    assert values["rollout/tokens"] == sum(len(member.tokens) for member in members)
    assert values["rollout/tokens_per_second"] == values["rollout/tokens"] / 2  # type: ignore[operator]
    lengths = [len(member.tokens) for member in members]
    assert values["rollout/length_mean"] == pytest.approx(sum(lengths) / 24)
    assert values["rollout/reward"] == pytest.approx((8 - 16) / 24)


async def test_dynamic_sampling_stops_at_its_bound_and_trains_whole_updates() -> None:
    scene, everyone = dynamic("~--+" + "~-~-" + "~~~~", spare=8, limit=2)
    _, groups = await refilled_step(scene, everyone)
    assert [group.prompt.question for group in groups] == ["q0", "q4"]  # 3 kept of 8, B = 2
    assert scene.progress.notes == [
        "step 0: dynamic sampling kept 3 of 8 groups in 2 rounds (1 all correct, 4 all wrong), wanted 4; stopped by "
        "rollout.refill_limit = 2 and trains on 2: raise it, take questions that the model solves sometimes, or lower "
        "rollout.prompts"
    ]


@pytest.mark.parametrize("spare", [0, 2])
async def test_dynamic_sampling_that_keeps_nothing_goes_on(spare: int) -> None:
    scene, everyone = dynamic("-" * (P + spare), spare=spare)
    outcome, groups = await refilled_step(scene, everyone)
    assert groups == []
    values = step_metrics(outcome)
    assert (values["update/count"], values["loss/tokens/fresh"]) == (0, 0)
    assert values["selection/discarded"] == values["rollout/prompts"] == P + spare
    assert (values["rollout/accuracy"], values["rollout/samples"]) == (0.0, 3 * (P + spare))
    assert values["verifier/status/wrong"] == 3 * (P + spare)
    assert "selection/accuracy" not in values
    assert scene.weights.versions == [1]
