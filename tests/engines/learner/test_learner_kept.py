"""Sets scored after updates have begun: under the weights before them, to the bit, and without a trace on the present ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlep.core.errors import UpdateError
from rlep.core.types import Float32Array
from rlep.engines.learner.policy import named_shards
from rlep.engines.learner.rank import LearnerRank
from tests.engines.learner.learner_cases import ragged_batch
from tests.engines.learner.learner_process import run_ranks, same, save_batch, weights_of

SETS = [ragged_batch(seed=seed) for seed in range(4)]


@pytest.fixture
def start(start: Callable[..., LearnerRank]) -> Callable[..., LearnerRank]:
    """Starter of learners that keep the weights before a rollout's first update."""
    return partial(start, keep=True)


def test_sets_scored_and_trained_one_by_one_give_the_weights_of_sets_scored_first(
    start: Callable[..., LearnerRank],
) -> None:
    options = {"update": {"lr": 1e-2, "warmup": 0}}
    learner = start(**options)
    for rollout in range(2):
        scored = [replace(batch, old_logprobs=learner.score(batch)) for batch in SETS]
        for batch in scored:
            learner.update(batch, rollout=rollout)
    expected = weights_of(learner)
    streamed = start(**options)
    for rollout in range(2):
        for batch in SETS:
            old = streamed.score(batch, rollout=rollout)
            streamed.update(replace(batch, old_logprobs=old), rollout=rollout)
    assert same(weights_of(streamed), expected)


def test_scoring_at_the_start_leaves_the_present_weights_alone(start: Callable[..., LearnerRank]) -> None:
    learner = start(update={"lr": 1e-2, "warmup": 0})
    before = learner.score(SETS[0], rollout=7)
    learner.update(SETS[1], rollout=7)
    present, now = weights_of(learner), learner.score(SETS[0])
    assert np.abs(now - before).max() > 1e-3
    for _ in range(2):
        np.testing.assert_array_equal(learner.score(SETS[0], rollout=7), before)
        np.testing.assert_array_equal(learner.score(SETS[0]), now)
    assert same(weights_of(learner), present)
    np.testing.assert_array_equal(learner.score(SETS[0], rollout=8), now)  # not updated on yet


def test_weights_that_were_not_kept_are_not_made_up(start: Callable[..., LearnerRank], tmp_path: Path) -> None:
    learner = start(keep=False)
    learner.update(SETS[0], rollout=3)
    with pytest.raises(UpdateError, match="rollout 3 has been updated on and the weights before that were not kept"):
        learner.score(SETS[1], rollout=3)
    learner = start()
    learner.update(SETS[0], rollout=4)
    learner.save(tmp_path)
    assert learner.written(60)
    learner.update(SETS[0], rollout=4)
    learner.load(tmp_path)  # the step is made again from here: these are its first weights
    np.testing.assert_array_equal(learner.score(SETS[1], rollout=4), learner.score(SETS[1]))


def test_a_failure_while_scoring_gives_the_present_weights_back(start: Callable[..., LearnerRank]) -> None:
    learner = start(update={"lr": 1e-2, "warmup": 0})
    learner.update(SETS[0], rollout=0)
    present = weights_of(learner)
    broken = replace(SETS[1], tokens=np.full_like(SETS[1].tokens, 10_000))
    with pytest.raises(IndexError):
        learner.score(broken, rollout=0)
    assert same(weights_of(learner), present)


def test_two_ranks_keep_their_shards(model: Path, tmp_path: Path) -> None:
    paths = [save_batch(tmp_path / f"set-{number}.npz", batch) for number, batch in enumerate(SETS)]
    scores = [("score", path) for path in paths[1:]]
    rest = [("update", path, 0) for path in paths[1:]]
    before = run_ranks(tmp_path, model, 2, [*scores, ("update", paths[0], 0), *rest], lr=1e-2)
    at_start = [("score", path, 0) for path in paths[1:]]
    after = run_ranks(tmp_path, model, 2, [("update", paths[0], 0), *at_start, *rest], lr=1e-2, keep=True)
    assert after[1:4] == before[:3]
    assert after[4:] == before[4:]


def test_asleep_it_holds_no_memory_and_it_goes_on_to_the_bit(start: Callable[..., LearnerRank], model: Path) -> None:
    options = {
        "update": {"lr": 1e-2, "warmup": 0},
        "loss": {"kl_coef": 0.1},
    }

    def trained(*, sleeps: bool) -> tuple[dict[str, Tensor], Float32Array]:
        learner = start(**options)
        for rollout, (first, second) in enumerate((SETS[:2], SETS[2:])):
            for batch in (first, second):
                old = learner.score(batch, rollout=rollout)
                learner.update(replace(batch, old_logprobs=old), rollout=rollout)
                if sleeps:
                    learner.sleep()
                    assert not sum(tensor.untyped_storage().nbytes() for tensor in held(learner))
                    learner.wake()
        return weights_of(learner), learner.score(SETS[0], rollout=1)

    weights, logprobs = trained(sleeps=True)
    expected, wanted = trained(sleeps=False)
    assert same(weights, expected)
    np.testing.assert_array_equal(logprobs, wanted)


def test_a_rehearsal_of_the_largest_update_leaves_no_trace(start: Callable[..., LearnerRank], model: Path) -> None:
    """Weights, random numbers, moments, reports and later scores are those of a learner that did not rehearse, to the bit."""

    def trained(*, rehearses: bool) -> tuple[list[object], dict[str, Tensor], Float32Array]:
        learner = start(
            update={"lr": 1e-2, "warmup": 2, "unit": "updates"},
            loss={"kl_coef": 0.1, "entropy_coef": 0.1},
            micro_batch_tokens=50,
            data={"max_prompt_tokens": 8},
            rollout={"max_tokens": 16},
            reward={"overlong_buffer": 0},
        )
        if rehearses:
            learner.rehearse()
        reports = [learner.update(batch, rollout=0) for batch in SETS]
        told: list[object] = [
            (report.loss, report.grad_norm, report.learning_rate, report.sources) for report in reports
        ]
        moments = {name: moment.full_tensor().clone() for name, moment in learner._optimizer.moments().items()}
        state = weights_of(learner) | moments | {"random": torch.rand(4)}
        return [*told, learner._optimizer.steps], state, learner.score(SETS[0], rollout=0)

    told, state, scores = trained(rehearses=True)
    expected, wanted, plain = trained(rehearses=False)
    assert told == expected
    assert same(state, wanted)
    np.testing.assert_array_equal(scores, plain)


TIS = {"weight": "token", "cap": 2.0}


@pytest.mark.parametrize(
    "keys",
    [
        {"loss": {"correction": TIS}},
        {"replay": {"count": 1, "correction": TIS}},
        {"loss": {"high_entropy_fraction": 0.2}},
    ],
    ids=["fresh", "replay", "high_entropy_fraction"],
)
def test_every_loss_is_rehearsed_with_the_log_probs_and_the_entropies_that_it_asks_for(
    start: Callable[..., LearnerRank], keys: dict[str, dict[str, Any]]
) -> None:
    learner = start(
        **keys,
        micro_batch_tokens=50,
        data={"max_prompt_tokens": 8},
        rollout={"max_tokens": 16},
        reward={"overlong_buffer": 0},
    )
    before = weights_of(learner)
    learner.rehearse()
    assert same(weights_of(learner), before)


def held(learner: LearnerRank) -> list[Tensor]:
    """Weights, moments, the reference's weights, and those kept from before the rollout."""
    assert learner._reference is not None
    sharded = [*learner._trained, *named_shards(learner._reference), *learner._optimizer.moments().items()]
    copies = learner._start.copies
    assert len(copies) == len(learner._trained)
    return [*(tensor.to_local() for _, tensor in sharded), *copies]
