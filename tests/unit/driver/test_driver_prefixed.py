"""``replay.method = "prefix"``: groups that go on from a stored success, and train on nothing of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import ConfigError, MixingError
from rlep.core.jsonl import read_lines
from rlep.core.types import Prompt
from rlep.driver.context import Step
from rlep.driver.live_replay import successes
from rlep.driver.replays import choose_method
from rlep.driver.run_state import RunState
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.prefixed import prefixed_groups
from rlep.methods.prefix import Prefix
from tests.unit.driver.driver_fakes import FakePool, Killed, Scene, World, filled_pool, scene_of
from tests.unit.driver.driver_values import G, P, answer_of, config_of, prompts_of, untimed
from tests.unit.driver.live_scene import Stored, batches, live_config, trained

PROMPTS = prompts_of(P)
LENGTH = 10
HALF = {"shortest": 0.5, "longest": 0.5}
GROUPS = prefixed_groups(lambda tokens: f"<{' '.join(map(str, tokens.tolist()))}>")


def scene(*, share: float = 1.0, stored: int = P) -> Scene:
    """Half of a response of ten tokens is given where one of the first ``stored`` prompts has a prefix."""
    config = config_of(
        rollout={"max_tokens": 16},
        replay={"method": "prefix", "options": {**HALF, "share": share}},
        update={"prompts": 2},
    )
    pool = FakePool(World(), {prompt.id: [answer_of(prompt, 7, length=LENGTH)] for prompt in PROMPTS[:stored]})
    return scene_of(config, pool=pool)


async def trained_step(part: Scene) -> tuple[Step, StepOutcome]:
    step = part.step(replays=1)
    return step, await run_step(step, PROMPTS, GROUPS)


async def test_five_of_ten_tokens_are_given_and_no_token_of_them_is_trained() -> None:
    part = scene(stored=2)
    step, outcome = await trained_step(part)
    begun = [answer_of(prompt, 7, length=LENGTH).tokens[:5].tolist() for prompt in PROMPTS[:2]]
    expected = [[900, 950, *begun[0]], [901, 950, *begun[1]], [902, 950], [903, 950]]
    for at, prompt in enumerate(PROMPTS):
        asked = [request for request in part.generators.asked if request.prompt_id == prompt.id]
        assert [request.tokens.tolist() for request in asked] == [expected[at]] * G
        assert [request.given for request in asked] == [5 if at < 2 else 0] * G
    first, second = part.learner.batches
    assert first.prompt_lengths.tolist() == [7] * 2 * G  # the two of a question and five that are given
    assert second.prompt_lengths.tolist() == [2] * 2 * G
    assert not first.replayed.any()
    # Every trained token is one of the continuation's.
    fresh = np.concatenate(
        [member.tokens for ready in outcome.mini_batches for group in ready.groups for member in group.fresh]
    )
    inside = [
        batch.tokens[start + prompt : end]
        for batch in (first, second)
        for start, end, prompt in zip(batch.offsets[:-1], batch.offsets[1:], batch.prompt_lengths, strict=True)
    ]
    assert np.concatenate(inside).tolist() == fresh.tolist()
    assert [visit.given for visit in step.visits] == [5, 5, 0, 0]


async def test_the_whole_response_is_graded() -> None:
    part, seen = scene(stored=1), dict[str, str]()
    grade = part.verifiers.grade

    async def look(prompt: Prompt, completions: object) -> object:
        seen[prompt.id] = prompt.opening
        return await grade(prompt, completions)  # type: ignore[arg-type]

    part.verifiers.grade = look  # type: ignore[assignment,method-assign]
    await trained_step(part)
    assert seen == {PROMPTS[0].id: "<507 1 2 3 4>", **{prompt.id: "" for prompt in PROMPTS[1:]}}


async def test_metrics_tell_prefixed_groups_apart_and_solved_counts_bare_questions_alone() -> None:
    part = scene(stored=2)
    part.verifiers.verdicts = {
        PROMPTS[0].id: ("correct", "correct", "wrong"),
        PROMPTS[1].id: ("wrong", "correct", "wrong"),
        PROMPTS[2].id: ("wrong", "correct", "wrong"),
        PROMPTS[3].id: ("wrong", "wrong", "wrong"),
    }
    _, outcome = await trained_step(part)
    metrics = step_metrics(outcome)
    assert (metrics["prefix/groups"], metrics["prefix/tokens"], metrics["prefix/accuracy"]) == (2, 5.0, 0.5)
    assert metrics["rollout/accuracy"] == pytest.approx(4 / 12)
    assert "replay/trajectories" not in metrics
    state = RunState(0, "", "", "").add_step(outcome, keep_used=True)
    assert state.solved == [PROMPTS[2].id]
    assert sorted(state.used.values()) == [1, 1]
    assert {member.prompt_id for member in successes(outcome.mini_batches)} == {PROMPTS[2].id}


async def test_a_stored_response_goes_through_the_gate_of_every_replay() -> None:
    part = scene()
    assert part.pool is not None
    part.pool.stored[PROMPTS[1].id] = [answer_of(PROMPTS[0], 7, length=LENGTH)]
    with pytest.raises(MixingError, match=rf"prompt {PROMPTS[1].id}: trajectory .* answers {PROMPTS[0].id}"):
        await trained_step(part)
    part.pool.stored[PROMPTS[1].id] = [answer_of(PROMPTS[1], 7, length=17)]
    with pytest.raises(MixingError, match=r"has 17 tokens, and rollout\.max_tokens is 16"):
        await trained_step(part)


def test_cuts_are_uniform_between_their_bounds_and_leave_a_token() -> None:
    method = Prefix(seed=3, options={"shortest": 0.25, "longest": 0.75})
    stored = answer_of(PROMPTS[0], 0, length=100)
    cuts = np.array([method.given(step, stored) for step in range(4000)])
    assert (cuts.min(), cuts.max()) == (25, 74)
    assert cuts.mean() == pytest.approx(49.5, abs=1.0)  # uniform over 25 … 74, standard error 0.23
    longest = Prefix(options={"shortest": 0.99, "longest": 0.99})
    assert longest.given(0, answer_of(PROMPTS[0], 0, length=1)) == 0
    assert longest.given(0, answer_of(PROMPTS[0], 0, length=200)) == 198


def test_a_share_of_the_questions_is_drawn_whatever_their_order() -> None:
    method, ids = Prefix(seed=3), [f"{number:032x}" for number in range(4000)]
    drawn = method.with_replays(1, ids)
    assert len(drawn) == pytest.approx(2000, abs=130)  # four standard deviations of 32
    assert sorted(method.with_replays(1, ids[::-1])) == sorted(drawn)
    assert method.with_replays(2, ids) != drawn


async def test_a_run_with_prefixes_of_its_own_successes_survives_kills_to_the_bit(tmp_path: Path) -> None:
    replay = {"method": "prefix", "source": "live", "per_question": 2, "options": {**HALF, "share": 0.5}}
    config = live_config(run={"steps": 8}, replay=replay)
    expected: Stored = {}
    whole = await trained(tmp_path / "whole", config, expected)
    lines = [line["metrics"] for line in read_lines(tmp_path / "whole" / "metrics.jsonl")]
    assert sum(line["prefix/groups"] for line in lines) > 5
    happened = len(whole.scene.world.happened)
    assert happened > 200
    for kill_at in range(40, happened, 67):
        stored: Stored = {}
        with pytest.raises(Killed):
            await trained(tmp_path / str(kill_at), config, stored, kill_at)
        again = await trained(tmp_path / str(kill_at), config, stored)
        assert untimed(tmp_path / str(kill_at)) == untimed(tmp_path / "whole")
        assert again.scene.learner.state == whole.scene.learner.state
        assert batches(again) == batches(whole)[len(batches(whole)) - len(batches(again)) :]


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({"method": "prefix", "count": 2}, r"needs replay\.count = 1, not 2: all responses of a group go on"),
        ({"method": "prefix", "weight": 0.5}, r"needs replay\.weight = 1, not 0\.5: a prefix is context"),
        ({"method": "prefix", "require": True}, r"needs replay\.require = false, not true: a prefix is context"),
        ({"method": "prefix", "old_logprobs": "unit"}, 'needs replay.old_logprobs = "recompute"'),
        ({"method": "rlep", "count": 1, "group": "prefix"}, '"prefix" is for methods that say how much'),
        ({"method": "prefix", "group": "add"}, 'such as replay.method = "prefix", and the only one for those'),
        ({"method": "prefix", "options": {"longest": 1.0}}, "shortest and longest from 0 to below 1"),
    ],
)
def test_what_a_prefix_has_no_use_for_is_refused(replay: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_method(config_of(replay=replay))


async def test_a_step_without_prefixes_is_the_step_without_replay_to_the_bit() -> None:
    empty = scene(stored=0)
    plain = scene_of(config_of(rollout={"max_tokens": 16}, replay={"count": 0}), pool=filled_pool(World(), PROMPTS))
    await trained_step(empty)
    await run_step(plain.step(replays=0), PROMPTS)
    assert empty.learner.state == plain.learner.state
