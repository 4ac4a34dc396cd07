"""``TrlReplay`` in TRL's own ``GRPOTrainer``, on CPU, beside a pool server in a process of its own."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlep.core.types import prompt_id_of
from rlep.integrations import repeats
from rlep.integrations.trl import TrlReplay
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_scene import (
    Trained,
    correct,
    fill,
    origin,
    questions,
    solutions,
    trained,
    trainer_of,
)

GROUP = 4


def same(one: Trained, other: Trained, *columns: str) -> bool:
    """Tell whether numbers of the log and weights are equal to the bit."""
    ours, theirs = one.weights, other.weights
    return all(one.column(name) == other.column(name) for name in columns) and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


@pytest.mark.parametrize("plain", [False, True], ids=["chat", "text"])
def test_with_nothing_to_replay_a_training_is_trls_to_the_bit(
    pool_of: OpenPool, tmp_path: Path, *, plain: bool
) -> None:
    given: dict[str, Any] = {"prompts": 8, "plain": plain, "eval_dataset": questions(2, plain=plain)}
    given |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
    alone = trained(tmp_path / "alone", **given)
    beside = trained(tmp_path / "beside", TrlReplay(pool_of(), count=2), **given)  # each question comes once
    assert len(set(alone.column("loss"))) > 1
    assert same(alone, beside, "loss", "grad_norm", "reward", "entropy")
    evaluated = [
        [line["eval_reward"] for line in done.trainer.state.log_history if "eval_reward" in line]
        for done in (alone, beside)
    ]
    assert evaluated[0] == evaluated[1]
    assert len(evaluated[0]) == 2
    assert beside.column("replay/rows") == [0.0] * 4
    assert beside.column("replay/empty") == [2.0] * 4
    rewarded = sum(beside.column("reward")) * 8
    assert sum(beside.column("replay/stored")) + sum(beside.column("replay/duplicates")) == rewarded > 0
    assert not any("replay/rows" in line for line in alone.log)


def test_replays_take_the_last_places_and_the_policy_fills_up(pool_of: OpenPool, tmp_path: Path) -> None:
    pool = pool_of()
    done = trained(tmp_path, TrlReplay(pool, count=2), max_steps=8)
    births: dict[str, list[int]] = {}
    for member in pool.export():
        births.setdefault(member.prompt_id, []).append(member.provenance.policy_version)
    for step, prompts in done.prompts.items():
        expected = set()
        for start in (0, GROUP):
            stored = sum(birth < step for birth in births.get(prompt_id_of(prompts[start], ""), ()))
            expected |= {start + GROUP - place for place in range(1, min(stored, 2) + 1)}
        assert {row for row, _ in done.drawn[step]} == expected
        assert all(birth < step for birth in done.births[step])
    counted = [float(len(rows)) for rows in done.drawn.values()]
    assert done.column("replay/rows") == counted
    assert {1.0, 2.0, 3.0} & set(counted)  # some group was filled up
    assert sum(done.column("replay/stored")) == pool.stats().trajectories
    assert done.column("replay/empty") == [
        sum(not any(birth < step for birth in births.get(prompt_id_of(asked, ""), ())) for asked in {*prompts})
        for step, prompts in done.prompts.items()
    ]


def test_replays_are_rewarded_and_weighed_as_every_response_of_their_group(pool_of: OpenPool, tmp_path: Path) -> None:
    with pool_of() as pool:
        fill(pool, solutions(3))
    done = trained(tmp_path, TrlReplay(pool_of(), source="offline", count=2), max_steps=1, steps_per_generation=1)
    (line,) = done.log
    assert len(done.drawn[0]) == 4
    batch = done.trainer._buffered_inputs[0]
    tokens = [member for stored in solutions(3).values() for member in stored]
    replayed = [
        ids[mask.bool()].tolist() in tokens
        for ids, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]
    assert sum(replayed) == 4
    # Two of four are replays with reward 1. With s fresh successes the mean is (2 + s)/4; all four right: no advantage.
    rewards = np.array(done.trainer._logs["rewards"]["correct"]).reshape(2, GROUP)
    assert rewards[:, 2:].tolist() == [[1.0, 1.0]] * 2
    advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    assert sorted(batch["advantages"].tolist()) == pytest.approx(sorted(advantages.ravel().tolist()), abs=1e-5)
    assert line["reward"] == pytest.approx(rewards.mean())


def test_old_logprobs_of_replays_are_those_of_the_steps_first_policy(pool_of: OpenPool, tmp_path: Path) -> None:
    """Two updates a rollout: without vLLM, TRL recomputes old log-probs of all rows, and none is corrected for a sampler."""
    with pool_of() as pool:
        fill(pool, solutions(3))
    replay = TrlReplay(pool_of(), source="offline", count=2)
    trainer = trainer_of(
        tmp_path,
        rewards=[replay.reward(correct)],
        rollout_func=replay.rollout,
        max_steps=1,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        learning_rate=0.0,
    )
    trainer.train()
    for batch in trainer._buffered_inputs:
        assert "importance_sampling_ratio" not in batch
        assert "sampling_per_token_logps" not in batch
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits = type(trainer.model).forward(
                trainer.model, input_ids=ids, attention_mask=mask, position_ids=positions
            )
        width = batch["completion_ids"].shape[1]
        scores = (
            logits.logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]
        )
        kept = batch["completion_mask"].bool()
        assert torch.allclose(batch["old_per_token_logps"][kept], scores[kept], atol=1e-4)


def test_a_resumed_training_draws_and_loses_the_same(pool_of: OpenPool, tmp_path: Path) -> None:
    # One epoch: after a second one began, TRL's sampler gives a resumed training other prompts.
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "times": 3}
    with pool_of() as pool:
        whole = trained(tmp_path / "run", TrlReplay(pool), **given)
        digest = pool.digest()
    pool = pool_of()
    again = trained(tmp_path / "run", TrlReplay(pool), resume=tmp_path / "run" / "checkpoint-3", **given)
    assert {step: whole.drawn[step] for step in (3, 4, 5)} == again.drawn
    assert any(whole.drawn[step] for step in (3, 4, 5))
    assert same(
        whole, again, "loss", "grad_norm", "reward"
    )  # the log of the first three steps comes from the checkpoint
    assert pool.digest() == digest
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))  # the same objects, once more
    assert pool.digest() == digest


def right(completions: list[Any], **_: object) -> list[float]:
    return [1.0] * len(completions)


def test_one_object_serves_one_trainer_after_another(pool_of: OpenPool, tmp_path: Path) -> None:
    pool = pool_of()
    replay = TrlReplay(pool)
    wrapped = replay.reward(right)
    for run in ("first", "second"):
        given: dict[str, Any] = {"rewards": [wrapped], "rollout_func": replay.rollout, "run_name": run}
        trainer_of(tmp_path / run, **given, max_steps=3, seed=len(run)).train()
    assert {label.partition("@")[0] for label in pool.stats().by_policy} == {"first", "second"}


def test_the_pool_keeps_what_a_checkpoint_or_the_next_step_needs(pool_of: OpenPool, tmp_path: Path) -> None:
    pool = pool_of()
    given: dict[str, Any] = {"prompts": 2, "times": 8, "max_steps": 8, "rewards": right}
    done = trained(tmp_path / "one", TrlReplay(pool, count=1, per_question=1), **given)
    stored, removed = sum(done.column("replay/stored")), sum(done.column("replay/removed"))
    assert removed > 0
    assert pool.stats().trajectories == stored - removed
    kept = pool_of("kept")
    given |= {"save_strategy": "steps", "save_steps": 1}
    saved = trained(tmp_path / "two", TrlReplay(kept, count=1, per_question=1), **given)
    assert sum(saved.column("replay/removed")) < removed  # checkpoint-1 may be gone on with


def test_a_pool_that_rlep_collected_is_found_by_the_reference(pool_of: OpenPool, tmp_path: Path) -> None:
    with pool_of() as pool:
        fill(pool, solutions(2, reference=True), origin("phase-1", template_digest=""))
    replay = TrlReplay(pool_of(), count=1, method="rlep", reference="answer")
    done = trained(tmp_path / "a", replay, max_steps=1)
    assert [row for row, _ in done.drawn[0]] == [3, 7]
    by_question = trained(tmp_path / "b", TrlReplay(pool_of(), count=1, method="rlep"), max_steps=1)
    assert by_question.drawn[0] == []


async def later(completions: list[Any], answer: list[str], **_: object) -> list[float]:
    return correct(completions, answer)


class Judge:
    """A reward function that is an object."""

    def __call__(self, completions: list[Any], answer: list[str], **_: object) -> list[float | None]:
        return [
            None if not found else reward
            for found, reward in zip(completions, correct(completions, answer), strict=True)
        ]


@pytest.mark.parametrize(
    ("function", "name"),
    [(later, "later"), (Judge(), "Judge"), (functools.partial(correct, unused=1), "correct")],
    ids=["async", "object", "partial"],
)
def test_reward_functions_of_every_kind_are_wrapped(
    pool_of: OpenPool, tmp_path: Path, function: Any, name: str
) -> None:
    done = trained(tmp_path, TrlReplay(pool_of()), rewards=function, max_steps=3)
    right = [8 * reward - rows for reward, rows in zip(done.column("reward"), done.column("replay/rows"), strict=True)]
    kept = [sum(pair) for pair in zip(done.column("replay/stored"), done.column("replay/duplicates"), strict=True)]
    assert kept == right  # every replay is right
    assert done.column(f"rewards/{name}/mean") == done.column("reward")


def test_what_counts_as_a_success_is_the_callers(pool_of: OpenPool, tmp_path: Path) -> None:
    def graded(completions: list[Any], answer: list[str], **_: object) -> list[float]:
        return [0.5 * value for value in correct(completions, answer)]

    none, half = TrlReplay(pool_of("none")), TrlReplay(pool_of("half"))
    assert sum(trained(tmp_path / "none", none, rewards=graded).column("replay/stored")) == 0
    assert sum(trained(tmp_path / "half", half, rewards=graded, success=0.5).column("replay/stored")) > 0


@pytest.mark.parametrize(
    "given",
    [
        {"logging_steps": 1},
        {"logging_steps": 2},
        {"logging_steps": 10},
        {"logging_steps": 3, "steps_per_generation": 2, "per_device_train_batch_size": 4, "max_steps": 12},
        {"logging_steps": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
        {"logging_steps": 10, "eval_strategy": "steps", "eval_steps": 3, "eval_dataset": questions(2)},
    ],
    ids=["every step", "every second", "at the end", "two updates a rollout", "accumulated", "evaluated between"],
)
def test_the_log_adds_up_to_what_was_replayed_and_stored(
    pool_of: OpenPool, tmp_path: Path, given: dict[str, Any]
) -> None:
    pool = pool_of()
    with pool_of() as others:
        fill(others, dict([*solutions(1).items()][:1]))
    done = trained(tmp_path, TrlReplay(pool, count=2), **{"max_steps": 7} | given)
    births = [birth for rows in done.births.values() for birth in rows]
    ages = [step - birth for step, rows in done.births.items() for birth in rows if birth >= 0]
    assert total(done, "rows") == len(births) > len(ages) > 0
    assert total(done, "live") == len(ages)
    assert total(done, "stored") == pool.stats().trajectories - 1
    lines = [line for line in done.trainer.state.log_history if line.get("replay/live")]
    assert sum(line["replay/age"] * line["replay/live"] for line in lines) == pytest.approx(sum(ages))
    without = [line for line in done.trainer.state.log_history if line.get("replay/live") == 0]
    assert not any("replay/age" in line for line in without)


def total(done: Trained, name: str) -> float:
    """A count over all lines of a training's log."""
    return sum(line.get(f"replay/{name}", 0) for line in done.trainer.state.log_history)


def test_a_checkpoint_between_two_lines_of_the_log_keeps_what_was_counted(pool_of: OpenPool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_steps": 7, "logging_steps": 5, "save_strategy": "steps", "save_steps": 3}
    with pool_of() as pool:
        first = trained(tmp_path, TrlReplay(pool, count=2), **given)
    again = trained(tmp_path, TrlReplay(pool_of(), count=2), resume=tmp_path / "checkpoint-3", **given)
    resumed = {step: first.drawn[step] for step in range(3)} | again.drawn
    assert total(first, "rows") == sum(map(len, first.drawn.values()))
    assert total(again, "rows") == sum(map(len, resumed.values()))
    assert sum(len(first.drawn[step]) for step in range(3)) > 0
    assert total(again, "stored") == pool_of().stats().trajectories


NEVER = "no question comes twice in these {} steps: nothing will be replayed"


@pytest.mark.parametrize(
    ("given", "replay", "warning"),
    [
        ({"prompts": 8, "max_steps": 4}, {}, NEVER.format(4) + " but what other runs stored in pool"),
        ({"prompts": 8, "max_steps": 4}, {"source": "live"}, NEVER.format(4) + ". Train longer"),
        ({"prompts": 8, "max_steps": 5}, {"source": "live"}, ""),
        ({"prompts": 4, "times": 2, "max_steps": 4}, {}, ""),  # each question is there twice
        (
            {"prompts": 4, "max_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4},
            {},
            NEVER.format(4),
        ),
        (
            {"prompts": 2, "times": 2, "max_steps": 1, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
            {},
            NEVER.format(1),
        ),
    ],
    ids=["once", "live", "a second pass", "duplicates", "two updates a rollout", "within one step"],
)
def test_a_training_whose_questions_never_come_back_says_so_once(
    pool_of: OpenPool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    replay: dict[str, Any],
    warning: str,
) -> None:
    with caplog.at_level(logging.WARNING, repeats.__name__):
        done = trained(tmp_path, TrlReplay(pool_of(), count=2, **replay), **given)
    assert [line[: len(warning)] for line in caplog.messages] == [warning] * bool(warning)
    if warning:
        assert total(done, "rows") == 0


def test_a_training_on_what_others_stored_needs_no_question_twice(
    pool_of: OpenPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pool_of() as pool:
        fill(pool, solutions(1))
    replay = TrlReplay(pool_of(), source="offline", minimum=1, count=1)
    with caplog.at_level(logging.WARNING, repeats.__name__):
        done = trained(tmp_path, replay, max_steps=2)
    assert (total(done, "rows"), total(done, "live"), caplog.messages) == (4.0, 0.0, [])
    assert not any("replay/age" in line for line in done.log)


@pytest.mark.parametrize("reward", [float("inf"), float("-inf"), float("nan")])
def test_a_reward_that_is_not_finite_teaches_no_later_group(pool_of: OpenPool, tmp_path: Path, reward: float) -> None:
    """Replays of another run get this reward from a function that has changed: their groups go on without it."""
    with pool_of() as pool:
        fill(pool, solutions(2))

    def changed(completions: list[Any], **_: object) -> list[float]:
        return [float(at % GROUP) if at % GROUP < 2 else reward for at in range(len(completions))]

    replay = TrlReplay(pool_of(), source="offline", count=2)
    done = trained(tmp_path, replay, rewards=changed, max_steps=1, steps_per_generation=1)
    (batch,) = done.trainer._buffered_inputs
    # Rewards 0 and 1 of the fresh responses: mean 1/2, deviation √½.
    expected = 0.5 / (0.5**0.5 + 1e-4)
    assert sorted(batch["advantages"].tolist()) == pytest.approx([-expected] * 2 + [0.0] * 4 + [expected] * 2, abs=1e-5)
