"""Log-probs of replays where TRL generates with vLLM: TRL's own importance weights, over a stand-in for the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlep.core.errors import ConfigError
from rlep.integrations.trl import TrlReplay
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_scene import (
    Engine,
    correct,
    fill,
    origin,
    solutions,
    tokenizer,
    trainer_of,
    with_engine,
)


def stepped(replay: TrlReplay, output: Path, **given: Any) -> tuple[Any, Engine]:
    """One rollout and its update, with the engine."""
    engine = Engine()
    settings: dict[str, Any] = {
        "max_steps": 1,
        "steps_per_generation": 1,
        "vllm_importance_sampling_mode": "token_truncate",
    } | given
    trainer = trainer_of(output, rewards=[replay.reward(correct)], rollout_func=replay.rollout, **settings)
    with_engine(trainer, engine)
    trainer.train()
    return trainer, engine


def weights(trainer: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """log(π0/μ) of each response as TRL has it, of replays and of others: the logarithms of its importance weights."""
    (batch,) = trainer._buffered_inputs
    replayed: list[torch.Tensor] = []
    fresh: list[torch.Tensor] = []
    for ids, mask, ratio in zip(
        batch["completion_ids"], batch["completion_mask"].bool(), batch["importance_sampling_ratio"], strict=True
    ):
        text = tokenizer().decode(ids[mask])
        (fresh if text.startswith("=1=1") else replayed).append(ratio.expand(len(mask))[mask].log())
    return replayed, fresh


def old(trainer: Any) -> list[torch.Tensor]:
    """Log-probs of the replays under the policy at the start of the step, which TRL computes."""
    (batch,) = trainer._buffered_inputs
    rows = zip(batch["completion_ids"], batch["completion_mask"].bool(), batch["old_per_token_logps"], strict=True)
    return [value[mask] for ids, mask, value in rows if not tokenizer().decode(ids[mask]).startswith("=1=1")]


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_unknown_logprobs_weigh_one_and_the_ratio_is_to_the_steps_first_policy(
    pool_of: OpenPool, tmp_path: Path, mode: str
) -> None:
    with pool_of() as pool:
        fill(pool, solutions(3))
    replay = TrlReplay(pool_of(), source="offline", count=2)
    trainer, engine = stepped(replay, tmp_path, vllm_importance_sampling_mode=mode)
    assert engine.calls == [(4, 1)]  # of two groups of four, two places each are replays'
    replayed, fresh = weights(trainer)
    assert len(replayed) == len(fresh) == 4
    assert all((ratio == 0).all() for ratio in replayed)
    assert all((ratio != 0).all() for ratio in fresh)
    assert torch.isfinite(torch.cat(old(trainer))).all()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["sampling/importance_sampling_ratio/mean"] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_logprobs_weigh_by_truncated_importance_sampling(pool_of: OpenPool, tmp_path: Path, dtype: str) -> None:
    """In bfloat16 too: fresh responses have no better ones of a vLLM in bfloat16, TRL's usual one."""
    with pool_of() as pool:
        fill(pool, solutions(3), origin("teacher", logprobs_dtype=dtype))
    replay = TrlReplay(pool_of(), source="offline", count=2, stored_logprobs=True)
    trainer, _ = stepped(replay, tmp_path)
    cap = torch.tensor(trainer.vllm_importance_sampling_clip_max).log()
    for ratio, before in zip(weights(trainer)[0], old(trainer), strict=True):
        assert torch.allclose(ratio, (before + 0.25).clamp(max=cap), atol=1e-5)  # as ``fill`` stored them


def test_stored_logprobs_that_cannot_be_compared_are_not_used(pool_of: OpenPool, tmp_path: Path) -> None:
    with pool_of() as pool:
        fill(pool, solutions(3), origin("teacher", logprobs_mode="raw"))
    replay = TrlReplay(pool_of(), source="offline", count=2, stored_logprobs=True)
    trainer, _ = stepped(replay, tmp_path, temperature=0.9)
    assert all((ratio == 0).all() for ratio in weights(trainer)[0])


def right(completions: list[Any], **_: object) -> list[float]:
    return [1.0] * len(completions)


def test_what_vllm_sampled_is_stored_with_its_logprobs(pool_of: OpenPool, tmp_path: Path) -> None:
    pool, engine = pool_of(), Engine()
    replay = TrlReplay(pool, count=1)
    trainer = trainer_of(
        tmp_path,
        rewards=[replay.reward(right)],
        rollout_func=replay.rollout,
        max_steps=1,
        temperature=0.7,
        top_k=5,
        generation_kwargs={"min_p": 0.1},
    )
    with_engine(trainer, engine)
    trainer.train()
    assert engine.calls == [(8, 4)]  # as TRL calls it, where no place is a replay's
    (first, second) = pool.export()
    for member in (first, second):
        assert member.logprobs is not None
        assert member.logprobs.tolist() == [-0.5] * 5
        assert (member.provenance.logprobs_mode, member.provenance.sampling.temperature) == ("processed", 0.7)
        assert (member.provenance.sampling.top_k, member.provenance.sampling.max_tokens) == (5, 32)
        assert member.provenance.sampling.min_p == 0.1  # of generation_kwargs
        assert (
            member.provenance.logprobs_dtype == "bfloat16"
        )  # not known of a vLLM elsewhere, whatever the trainer's is


@pytest.mark.parametrize(("started", "stored"), [("processed_logprobs", "processed"), ("raw_logprobs", "raw")])
def test_logprobs_of_a_server_are_stored_as_what_they_are(
    pool_of: OpenPool, tmp_path: Path, started: str, stored: str
) -> None:
    """vLLM's own default is raw ones, of which TRL warns only."""
    pool, replay = pool_of(), TrlReplay(pool_of(), count=1)
    trainer = trainer_of(tmp_path, rewards=[replay.reward(right)], rollout_func=replay.rollout, max_steps=1)
    with_engine(trainer, Engine(logprobs_mode=started))
    trainer.vllm_mode = "server"
    trainer.train()
    assert {member.provenance.logprobs_mode for member in pool.export()} == {stored}


def test_a_server_of_logits_is_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    replay = TrlReplay(pool_of(), count=1)
    trainer = trainer_of(tmp_path, rewards=[replay.reward(right)], rollout_func=replay.rollout, max_steps=1)
    with_engine(trainer, Engine(logprobs_mode="raw_logits"))
    trainer.vllm_mode = "server"
    with pytest.raises(
        ConfigError, match="--logprobs-mode raw_logits gives no log-probs: start it with processed_logp"
    ):
        trainer.train()
