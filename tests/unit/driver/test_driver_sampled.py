"""Episodes through a step: what an environment wrote is context in every batch, metric, stored response and file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlep.core.types import Completion, Request, Sampling, Trajectory
from rlep.driver.live_replay import successes
from rlep.driver.rollout import trajectory
from rlep.driver.run_state import tokens_computed
from rlep.driver.sft import sft_step
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.rollout_files import RolloutFiles
from rlep.metrics.logs import EventLog
from tests.unit.driver.driver_fakes import FakeGenerators, FakePool, Scene, World, scene_of
from tests.unit.driver.driver_values import BASE, G, M, P, answer_of, config_of, logprobs_of, prompts_of

PROMPTS = prompts_of(P)
MASK = np.array([True, False, False, True, True])
"""Two turns of one and of two tokens, and two tokens of the environment between them."""


@dataclass(eq=False)
class Episodes(FakeGenerators):
    """A policy whose every response is an episode of two turns."""

    def answer(self, request: Request, sampling: Sampling, version: int) -> Completion:
        said = super().answer(request, sampling, version)
        tokens = np.array([request.seed % 97, 70, 71, said.tokens[0], 1], dtype=np.int32)
        logprobs = np.where(MASK, np.float32(-0.5), np.float32(0))
        return replace(said, tokens=tokens, logprobs=logprobs, finish_reason="stop", sampled=MASK)


def stored_of(number: int, prompt: int = 0) -> Trajectory:
    """A stored episode of two turns, with log-probs −0.25."""
    plain = answer_of(PROMPTS[prompt], number, length=5)
    return replace(plain, sampled=MASK, logprobs=np.where(MASK, np.float32(-0.25), np.float32(0)))


def scene(directory: Path = Path("runs")) -> Scene:
    config = config_of(
        run={"directory": str(directory)},
        rollout={"max_staleness": 2},
        replay={"count": M, "selection": "most-probable"},
        loss={"correction": {"weight": "token", "cap": 2.0}},
    )
    pool = FakePool(World(), {one.id: [stored_of(n, at) for n in range(3)] for at, one in enumerate(PROMPTS)})
    made = scene_of(config, pool=pool)
    made.generators = made.weights.generators = Episodes(made.world)
    return made


async def one_step(part: Scene) -> StepOutcome:
    return await run_step(part.step(), PROMPTS)


async def test_batches_and_metrics_are_of_sampled_tokens() -> None:
    part = scene()
    outcome = await one_step(part)
    for batch in part.learner.batches:
        assert batch.sampled is not None
        assert batch.sampled.tolist() == [False, False, *MASK.tolist()] * len(batch)
        assert batch.sampled_lengths.tolist() == [3] * len(batch)
        assert batch.old_logprobs is not None
        assert batch.behaviour_logprobs is not None
        rows = np.repeat(batch.replayed, 3)
        assert set(batch.behaviour_logprobs[rows]) == {np.float32(-0.25)}
        assert set(batch.behaviour_logprobs[~rows]) == {np.float32(-0.5)}
        assert len(batch.old_logprobs) == len(rows)
    values = step_metrics(outcome)
    assert (values["rollout/tokens"], values["rollout/length_mean"], values["rollout/length_max"]) == (P * G * 3, 3, 3)
    assert (values["replay/tokens"], values["replay/length_mean"]) == (P * M * 3, 3)
    assert values["logprob/replay_behaviour"] == -0.25
    assert values["loss/tokens/fresh"] == P * G * 3
    assert values["staleness/mean"] == 0
    # Every token of an episode goes through the model: 2 of the prompt and 5, also of the 3 candidates of each question.
    fresh, replayed, candidates = 7 * P * G, 7 * P * M, 7 * P * 3
    assert tokens_computed(outcome) == {
        "generated": fresh,
        "scored": candidates + fresh + replayed,
        "trained": fresh + replayed,
    }


async def test_a_choice_by_probability_is_by_that_of_sampled_tokens() -> None:
    # A fake learner's log-prob of token t is −((7t + b) % 100) / 100: the stored episodes differ in what was told alone.
    part = scene()
    assert part.pool is not None
    told = [replace(stored_of(0), tokens=np.array([500, told, told, 3, 4], np.int32)) for told in (10, 20, 30)]
    odd = replace(stored_of(0), tokens=np.array([501, 10, 10, 3, 4], np.int32))
    part.pool.stored = {PROMPTS[0].id: [*told, odd]}
    drawn = (await one_step(part)).mini_batches[0].groups[0].replays
    alike, other = ((-((7 * first + BASE[0]) % 100)) for first in (500, 501))
    assert alike != other
    assert {member.tokens[0] for member in drawn} <= ({500} if alike > other else {500, 501})
    assert (odd.content_id in {member.content_id for member in drawn}) is (other > alike)


async def test_successes_are_stored_with_their_mask_and_the_learners_logprobs_in_place() -> None:
    outcome = await one_step(scene())
    found = successes(outcome.mini_batches)
    assert found
    scored = [logprobs_of(ready.batch, BASE).reshape(-1, 3) for ready in outcome.mini_batches]
    members = [member for ready in outcome.mini_batches for group in ready.groups for member in group.members]
    by_id = dict(zip([member.sample_id for member in members], np.concatenate(scored), strict=True))
    for member in found:
        assert member.sampled is MASK
        assert member.logprobs is not None
        assert member.logprobs.tolist() == [by_id[member.sample_id][0], 0, 0, *by_id[member.sample_id][1:]]


async def test_fine_tuning_imitates_sampled_tokens() -> None:
    part = scene()
    values = step_metrics(await sft_step(part.step(), PROMPTS))
    assert [batch.sampled_lengths.tolist() for batch in part.learner.batches] == [[3] * 2 * M] * 2
    assert values["replay/tokens"] == P * M * 3


async def test_the_files_of_a_step_show_who_wrote_a_token(tmp_path: Path) -> None:
    part = scene(tmp_path)
    with EventLog(tmp_path / "events.jsonl") as events:
        async with RolloutFiles(part.config, lambda tokens: str(len(tokens)), events) as files:
            step = part.step()
            await files.begin_step(step)
            outcome = await run_step(step, PROMPTS)
            await files.write_step(outcome, {})
    rows = pq.read_table(tmp_path / "rollouts" / "step-000000.parquet").to_pylist()
    texts = pq.read_table(tmp_path / "rollouts" / "step-000000.tokens.parquet").to_pylist()
    assert {row["tokens"] for row in rows} == {3}
    assert {row["sampler_logprob"] for row in rows} == {-0.5, -0.25}
    assert [row["sampled"] for row in texts] == [MASK.tolist()] * P * (G + M)
    learner = np.concatenate([logprobs_of(ready.batch, BASE).reshape(-1, 3) for ready in outcome.mini_batches])
    assert [row["logprob"] for row in rows] == pytest.approx(learner.mean(axis=1).tolist(), abs=1e-6)
    for row, scored in zip(texts, learner, strict=True):
        assert (row["text"], row["ends"]) == ("122", [1, 2, 3])  # parts of 1, 2 and 2 tokens, each decoded alone
        assert row["logprobs"] == pytest.approx([scored[0], 0, 0, *scored[1:]], abs=1e-3)
        assert [value == 0 for value in row["sampler_logprobs"]] == (~MASK).tolist()


def test_a_completion_of_an_environment_is_stored_as_its() -> None:
    part = scene()
    run = replace(part.run, environment_digest="game")
    request = Request("train/0/q/0", PROMPTS[0].id, PROMPTS[0].tokens, 0, seed=3)
    said = part.generators.answer(request, Sampling(max_tokens=8), 0)
    made = trajectory(run, said, answer_of(PROMPTS[0], 0).verdict, Sampling(max_tokens=8))
    assert made.sampled is MASK
    assert made.provenance.environment_digest == "game"
    assert trajectory(part.run, said, made.verdict, Sampling()).provenance.environment_digest == ""
