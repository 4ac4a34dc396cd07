"""Episodes in TRL: kept with the mask of what the policy sampled, replayed with it, and rewarded as they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError
from rlep.environments.calculator import Calculator
from rlep.integrations.trl import TrlReplay
from rlep.services.environment.digest import environment_digest
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_episodes_scene import (
    CALCULATOR,
    Counted,
    Script,
    episode,
    episodes_of,
    fill,
    of_rlep,
)
from tests.services.integrations.trl_scene import Engine, correct, trained, with_engine


def beside(pool: PoolClient, output: Path, script: Script, **given: Any) -> Any:
    """A trainer of episodes with replay, before its training."""
    replay = TrlReplay(pool, count=1, **given.pop("options", {}))
    rewards = [replay.reward(given.pop("correct", correct))]
    return episodes_of(output, script, rewards, rollout_func=replay.rollout, **given)


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in trainer.model.named_parameters()}


def same_training(one: Any, other: Any) -> bool:
    """Tell whether losses and weights are equal to the bit."""
    logs = [[line["loss"] for line in trainer.state.log_history if "loss" in line] for trainer in (one, other)]
    theirs = weights(other)
    return logs[0] == logs[1] and all(torch.equal(value, theirs[name]) for name, value in weights(one).items())


def test_with_nothing_to_replay_episodes_train_as_trls_and_are_kept_with_their_masks(
    pool_of: OpenPool, tmp_path: Path
) -> None:
    alone = episodes_of(tmp_path / "alone", Script(), prompts=8, max_steps=4)
    alone.train()
    pool = pool_of()
    other = beside(pool, tmp_path / "beside", Script(), prompts=8, max_steps=4)
    other.train()
    assert same_training(alone, other)
    assert len({line["loss"] for line in alone.state.log_history if "loss" in line}) > 1
    stored = {member.prompt_id: member for member in pool.export()}
    expected = [episode(at) for at in range(8)]
    assert stored.keys() == {one.prompt_id for one in expected}
    theirs = of_rlep("any")  # what rlep itself says of its episodes with this class
    for one in expected:
        member = stored[one.prompt_id]
        assert member.sampled is not None
        assert (member.tokens.tolist(), member.sampled.tolist()) == (one.tokens.tolist(), one.sampled.tolist())
        assert member.provenance.environment_digest == theirs.environment_digest
        assert member.provenance.template_digest == theirs.template_digest
        assert member.provenance.tokenizer_digest == theirs.tokenizer_digest
    assert theirs.environment_digest == environment_digest(CALCULATOR)


def test_a_replayed_episode_trains_as_a_fresh_one_of_its_tokens(pool_of: OpenPool, tmp_path: Path) -> None:
    """One of four responses is a fresh episode, the last one a replay of the same tokens, which rlep has filled the pool with."""
    pool = pool_of()
    fill(pool, of_rlep("teacher"), reference=True)
    script = Script()
    replayed = beside(pool, tmp_path / "one", script, options={"source": "offline", "reference": "answer"})
    replayed.train()
    assert script.calls == [6, 2]  # the policy fills six places of eight, and goes on after two calls
    fresh = episodes_of(tmp_path / "two", Script(episodes=(0, 3)))
    fresh.train()
    assert same_training(replayed, fresh)
    (line,) = [line for line in replayed.state.log_history if "loss" in line]
    assert line["replay/rows"] == 2.0
    # Of each group two responses are right: advantages of ±0.5 / (√(1/3) + 1e-4). The loss is the mean over the tokens that
    # the policy sampled: of the episodes, and two, "1<eos>", of each wrong response. All ratios are 1.
    right = sum(2 * int(episode(at).sampled.sum()) for at in range(2))
    wrong, advantage = 2 * 2 * 2, 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    assert line["loss"] == pytest.approx(-advantage * (right - wrong) / (right + wrong), abs=1e-4)
    assert line["completions/mean_length"] == pytest.approx((right + wrong) / 8)
    (batch,) = replayed._buffered_inputs
    masks = [episode(at).sampled.astype(int).tolist() for at in (0, 0, 1, 1)]
    found = [
        mask[kept.bool()].tolist()
        for mask, kept in zip(batch["tool_mask"], batch["completion_mask"], strict=True)
        if not mask[kept.bool()].all()
    ]
    assert sorted(found) == sorted(masks)


def test_an_environments_reward_is_stored_and_no_replay_is_played_again(pool_of: OpenPool, tmp_path: Path) -> None:
    pool, Counted.asked, Counted.used = pool_of(), 0, 0
    replay = TrlReplay(pool, count=1)
    given: dict[str, Any] = {"environment_factory": Counted, "rollout_func": replay.rollout, "max_steps": 3}
    trainer = episodes_of(tmp_path, Script(), None, **given)
    trainer.train()
    rows = [line["replay/rows"] for line in trainer.state.log_history if "loss" in line]
    assert rows == [0.0, 2.0, 2.0]
    assert Counted.asked == 8 + 6 + 6
    assert Counted.used == 3 * 2
    assert [line["reward"] for line in trainer.state.log_history if "loss" in line] == [2 / 8, 4 / 8, 4 / 8]
    named = f"environment:{Counted.__module__}:Counted"
    assert {(member.verdict.verifier, member.metadata["reward"]) for member in pool.export()} == {(named, "1.0")}
    assert [row[-1] for row in np.reshape(trainer._logs["rewards"]["Counted"], (-1, 4))] == [1.0] * 2


def evaluate(expression: str) -> str:
    """Compute an expression.

    Args:
        expression: Of numbers.
    """
    return Calculator().evaluate(expression)


@pytest.mark.parametrize(
    "given", [{"environment_factory": Calculator}, {"tools": [evaluate]}], ids=["environment", "tools"]
)
def test_functions_see_a_replay_as_a_conversation_and_their_stored_reward_counts(
    pool_of: OpenPool, tmp_path: Path, given: dict[str, Any]
) -> None:
    seen: list[Any] = []

    def once(completions: list[Any], **_: object) -> list[float]:
        """Half a reward for every later look."""
        seen.extend(completions)
        return [1.0 / len(seen) if len(messages) > 1 else 0.0 for messages in completions]

    replay = TrlReplay(pool_of(), count=1)
    rewards = [replay.reward(once, success=0.125)]
    trainer = episodes_of(tmp_path, Script(), rewards, rollout_func=replay.rollout, max_steps=2, **given)
    trainer.train()
    assert [line["reward"] for line in trainer.state.log_history if "loss" in line] == pytest.approx(
        [2 / 8 / 8, (2 / 16 + 2 / 8) / 8]  # 1/8 was stored of each episode of the first eight
    )
    fresh, again = (seen[row] for row in (8, 11))
    assert [message["role"] for message in fresh] == ["assistant", "tool", "assistant"]
    assert (again[0], again[2]) == (fresh[0], fresh[2])
    assert again[1] == {**fresh[1], "content": again[1]["content"]}
    assert re.fullmatch(rf"\s*{fresh[1]['content']}\s*", again[1]["content"])


def test_functions_that_are_tools_are_named_by_their_sources(pool_of: OpenPool, tmp_path: Path) -> None:
    pool = pool_of()
    beside(pool, tmp_path / "one", Script(), tools=[evaluate]).train()
    (digest,) = {member.provenance.environment_digest for member in pool.export()}
    assert re.fullmatch(r"tools:evaluate:[0-9a-f]{8}", digest)
    again = beside(pool, tmp_path / "two", Script(), tools=[evaluate], options={"run": "other"})
    again.train()
    assert [line["replay/rows"] for line in again.state.log_history if "loss" in line] == [2.0]

    def other(expression: str) -> str:
        """Compute an expression.

        Args:
            expression: Of numbers.
        """
        return str(expression)

    other.__name__ = "evaluate"
    with pytest.raises(
        PoolError,
        match=rf"holds episodes of environment {digest}; this run's are episodes of environment tools:evaluate:",
    ):
        beside(pool, tmp_path / "three", Script(), tools=[other], options={"run": "third"}).train()


def test_a_pool_of_another_environment_is_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    fill(pool_of(), of_rlep("teacher"))
    with pytest.raises(
        PoolError, match=rf"holds episodes of environment {CALCULATOR}:\w+; this run's are responses without an env"
    ):
        trained(tmp_path, TrlReplay(pool_of(), source="offline"), max_steps=1)
    older = environment_digest(CALCULATOR)[:-8] + "00000000"
    fill(pool_of("older"), of_rlep("teacher", environment_digest=older))
    with pytest.raises(
        PoolError, match=rf"holds episodes of environment {older}; this run's are episodes of environment {CALCULATOR}:"
    ):
        beside(pool_of("older"), tmp_path, Script(), options={"source": "offline"}).train()


class Telling(Counted):
    """It says something else each time."""

    told = 0

    def reset(self, **row: object) -> Any:
        """Begin an episode."""
        type(self).told += 1
        return str(self.told)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"environment_factory": {"one": Counted, "two": Counted}},
            "has several environments, and a pool's episodes are",
        ),
        (
            {"environment_factory": Counted},
            "Counted has get_reward, and replay.reward has correct: one says what a success",
        ),
        ({"environment_factory": Telling, "rewards": None}, "what an environment's reset adds must be the same"),
    ],
    ids=["several", "two rewards", "told apart"],
)
def test_environments_that_cannot_be_replayed_are_refused(
    pool_of: OpenPool, tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    replay = TrlReplay(pool_of(), count=1)
    rewards = given.get("rewards", [replay.reward(correct)] if "rewards" not in given else None)
    rest = {name: value for name, value in given.items() if name != "rewards"}
    trainer = episodes_of(tmp_path, Script(), rewards, rollout_func=replay.rollout, **rest)
    if isinstance(given["environment_factory"], dict):
        trainer.train_dataset = trainer.train_dataset.add_column("environment", ["one", "two"])
    with pytest.raises(ConfigError) as refused:
        trainer.train()
    assert sentence in str(refused.value)


def test_logprobs_of_the_sampler_are_stored_with_none_for_the_tools(pool_of: OpenPool, tmp_path: Path) -> None:
    """As TRL has them from vLLM, whose importance weight of a replay is 1."""
    pool, script = pool_of(), Script(logprob=-0.5)
    trainer = beside(pool, tmp_path, script, max_steps=2)
    with_engine(trainer, Engine())
    trainer.vllm_mode = "server"
    trainer.train()
    for member in pool.export():
        assert member.logprobs is not None
        assert member.sampled is not None
        assert member.logprobs.tolist() == np.where(member.sampled, -0.5, 0.0).tolist()
    (batch,) = trainer._buffered_inputs
    ones = (batch["importance_sampling_ratio"] == 1).all(1)
    assert int(ones.sum()) == 2  # replays; fresh responses have another log-prob under the model
