"""A run with bounded staleness on real parts: rollouts cross weight updates, and every token is what its label says."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlep.actors.generators import GeneratorPool
from rlep.check.inputs import Subject
from rlep.cli.progress import TerminalProgress
from rlep.config.settings import load_config
from rlep.core.jsonl import read_lines
from rlep.core.types import Prompt
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import StepOutcome, run_step
from rlep.driver.train import Training, TrainingData
from rlep.launch.roles import run_actors
from rlep.launch.wings import rollouts
from tests.small import BASE, PROMPTS, small_task

STEPS, FRESH = 4, 16


async def kill_one(generators: GeneratorPool) -> None:
    """End a generator's process as a machine would that is switched off."""
    actor = next(replica.actor.living for replica in generators.replicas if replica.actor.living is not None)
    os.kill(await actor.ping.remote(), signal.SIGKILL)


def checked(outcome: StepOutcome) -> int:
    """Check each token's policy lag and log-prob; returns how many are stale."""
    stale = 0
    for ready in outcome.mini_batches:
        at = 0
        for group in ready.groups:
            assert len({one.sample_id for one in group.fresh}) == FRESH
            for one in group.fresh:
                assert one.token_versions is not None
                assert one.logprobs is not None
                old = ready.current_logprobs[at : at + len(one.tokens)]
                at += len(one.tokens)
                lag = outcome.step.number - one.token_versions
                assert set(lag.tolist()) <= ({0} if outcome.step.number == 0 else {0, 1})
                # A token of the trained version has the learner's log-prob, although the sampler's KV cache is older.
                # Stale tokens are what importance sampling is for.
                np.testing.assert_allclose(one.logprobs[lag == 0], old[lag == 0], atol=1e-4)
                stale += int((lag > 0).sum())
        assert at == len(ready.current_logprobs)
    return stale


@pytest.mark.parametrize(("partial", "killed"), [("keep", False), ("abort", True)])
async def test_tokens_are_within_the_bound_and_their_log_probs_those_of_their_version(
    tmp_path: Path, partial: str, killed: bool
) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=stale", "cluster.cpus=4"]
    overrides += [f"run.steps={STEPS}", f"rollout.fresh={FRESH}", "replay.count=0", "generator.max_sequences=8"]
    overrides += ["rollout.max_staleness=1", f"rollout.partial={partial}", 'loss.correction={weight="token",cap=2}']
    # Rewards that fall with every token: each group has a gradient, whatever the base model gets right.
    overrides += ["update.lr=1e-3", "reward.overlong_buffer=47", f"generator.count={2 if killed else 1}"]
    config = load_config([BASE], overrides)
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    outcomes: list[StepOutcome] = []
    store = RunDirectory(config.run.directory, config, Facts("train", "model", "tok", inputs.train.digest))
    async with run_actors(config) as actors:
        generators, verifiers, learners = actors.generators(), actors.verifiers(), actors.learners()
        await actors.started()

        async def train(step: Step, prompts: Sequence[Prompt]) -> StepOutcome:
            if killed and step.number == 1:
                await kill_one(generators)
            outcomes.append(await run_step(step, prompts))
            return outcomes[-1]

        weights = actors.weights(learners, generators, inputs.train.prompts)
        run = Run(config, Roles(generators, verifiers), TerminalProgress(), inputs.tokenizer.digest, "base", "float32")
        data = TrainingData(inputs.train, inputs.held_out, "", inputs.tokenizer.decode)
        trainers = Trainers(learners, weights, rollouts(run, inputs.train), None)
        await Training(run, trainers, data, store, train).run()
    store.close()
    stale = [checked(outcome) for outcome in outcomes]
    assert stale[0] == 0
    assert sum(stale) > 0
    lines = [line["metrics"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert len(lines) == STEPS
    for line, count in zip(lines, stale, strict=True):
        assert line["rollout/samples"] == PROMPTS * FRESH
        assert line["staleness/stale"] == pytest.approx(count / line["rollout/tokens"])
        assert line["weights/logprob_difference"] <= 1e-4
        assert 0.5 < line["correction/weight/fresh"] <= 2
    assert max(line["staleness/max"] for line in lines) == 1
    gaps = [abs(line["correction/weight/fresh"] - 1) for line in lines]
    assert max(gaps[1:]) > gaps[0], "on-policy tokens need no correction"
