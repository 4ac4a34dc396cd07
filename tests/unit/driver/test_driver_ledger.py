"""Which questions a run with live replay visits, and what every run counts of its questions and its compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlep.core.jsonl import read_lines
from rlep.data.prompts import PromptOrder
from tests.unit.driver.live_scene import (
    PROMPTS,
    STEPS,
    TRAIN,
    live_config,
    trained,
)


async def test_half_of_a_step_is_drawn_by_success_and_only_that_half_gets_replays(tmp_path: Path) -> None:
    config = live_config(replay={"method": "python:tests.unit.driver.replay_methods:Shared"})
    lived = await trained(tmp_path, config, {})
    order, known = PromptOrder(len(TRAIN), PROMPTS, config.run.seed), {prompt.id for prompt in TRAIN.prompts}
    asked = [one.prompt_id for one in lived.scene.generators.asked if one.prompt_id in known]
    size = PROMPTS * config.rollout.fresh
    visited = [list(dict.fromkeys(asked[at : at + size])) for at in range(0, len(asked), size)]
    planned = [[TRAIN.prompts[at].id for at in order.step(step)] for step in range(STEPS)]
    assert visited[0] == planned[0]  # nothing to draw from yet
    assert visited != planned
    for made, own in zip(visited, planned, strict=True):
        assert made[: PROMPTS // 2] == own[: PROMPTS // 2]
        assert len({*made}) == PROMPTS
    replayed = [
        int(batch.replayed.sum()) for batch in lived.scene.learner.batches
    ]  # two updates a step, of two groups each
    assert replayed[::2] == [0] * STEPS
    assert sum(replayed[1::2]) > 4


async def test_what_a_run_computed_and_solved_is_counted(tmp_path: Path) -> None:
    steps, rule = 24, {"source": "live", "minimum": 1, "selection": "most-probable", "per_question": 3}
    config = live_config(run={"steps": steps}, replay=rule)
    lived = await trained(tmp_path, config, {})
    made, learner = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")], lived.scene.learner
    sizes = [len(batch.tokens) for batch in learner.batches]
    assert made[-1]["compute/trained_tokens"] == sum(sizes)
    assert made[0]["compute/trained_tokens"] == sum(sizes[: len(sizes) // steps])
    assert made[-1]["compute/scored_tokens"] == sum(learner.scored)
    fresh = sum(int(np.diff(batch.offsets)[~batch.replayed].sum()) for batch in learner.batches)
    assert made[-1]["compute/generated_tokens"] == fresh
    solved: set[str] = set()
    for step, metrics in enumerate(made):
        visits = lived.graded[step * PROMPTS : (step + 1) * PROMPTS]
        assert metrics["prompts/lost"] == sum(one in solved and not correct for one, correct in visits)
        solved |= {one for one, correct in visits if correct}
        assert metrics["prompts/solved"] == len(solved)
    assert sum(metrics["prompts/lost"] for metrics in made) > 0


async def test_the_pass_that_finds_high_entropies_is_scored_too(tmp_path: Path) -> None:
    config = live_config(
        run={"steps": 2}, replay={"count": 0, "source": "offline"}, loss={"high_entropy_fraction": 0.2}
    )
    config = config.with_values(update={"epochs": 3})
    lived = await trained(tmp_path, config, {})
    (*_, last), batches = read_lines(tmp_path / "metrics.jsonl"), lived.scene.learner.batches
    tokens = sum(len(batch.tokens) for batch in batches) // 3  # each is updated on in three epochs
    assert last["metrics"]["compute/scored_tokens"] == tokens * (1 + 3)
    assert last["metrics"]["compute/trained_tokens"] == tokens * 3


async def test_sequences_out_of_the_loss_are_generated_and_scored_but_not_trained(tmp_path: Path) -> None:
    config = live_config(run={"steps": 6}, replay={"source": "live", "minimum": 1}, advantage={"drop_constant": True})
    lived = await trained(tmp_path, config, {})
    made, batches = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")], lived.scene.learner.batches
    assert made[-1]["compute/scored_tokens"] == sum(len(batch.tokens) for batch in batches)
    kept = sum(int(np.diff(batch.offsets)[batch.trained].sum()) for batch in batches)
    assert made[-1]["compute/trained_tokens"] == kept
    assert 0 < kept < sum(len(batch.tokens) for batch in batches)
