"""Training by TRL's own ``GRPOTrainer`` on the quickstart's model, beside a pool server in a process of its own."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlep import PoolClient
from rlep.config.schema import ModelConfig
from rlep.core.types import Trajectory, prompt_id_of, question_text
from rlep.engines.tokenizer import Tokenizer
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rule import replay_rule
from rlep.integrations.trl import TrlReplay
from rlep.quickstart.problems import Problem

with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
    patch.setitem(sys.modules, "vllm", None)  # TRL would import it, which takes half a minute
    patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

MODEL = Path(__file__).parents[3] / "rlep" / "quickstart" / "model"
Weights = dict[str, torch.Tensor]


def tokenizer() -> PreTrainedTokenizerFast:
    """The model's."""
    return PreTrainedTokenizerFast.from_pretrained(MODEL, padding_side="left")


def origin(run: str, **given: Any) -> Origin:
    """A run of the scene's model."""
    mine = Tokenizer(tokenizer(), ModelConfig())
    values: dict[str, Any] = {"tokenizer_digest": mine.digest, "template_digest": mine.template_digest}
    return Origin(run, **values | given)


def solutions(count: int, *, reference: bool = False) -> dict[str, list[list[int]]]:
    """Prompt id → so many right responses, for each of four questions."""
    found = {}
    for asked in questions(4):
        text, answer = asked["prompt"][0]["content"], asked["answer"]
        found[prompt_id_of(text, answer if reference else "")] = [
            tokenizer().encode(f"{'=' * number}{answer}<eos>", add_special_tokens=False) for number in range(count)
        ]
    return found


def fill(pool: PoolClient, stored: Mapping[str, Sequence[Sequence[int]]], run: Origin | None = None) -> None:
    """Store right responses as another run would, with log-probs of -0.25."""
    teacher = Replayer(pool, run or origin("teacher"), replay_rule(1))
    teacher.draw(0, [*stored])
    rows = [
        Row(name, np.array(tokens, np.int32), 1.0, finished=True, logprobs=np.full(len(tokens), -0.25, np.float32))
        for name, responses in stored.items()
        for tokens in responses
    ]
    teacher.keep(0, rows)
    assert teacher.take_counts().stored == len(rows)


def questions(count: int, *, plain: bool = False, times: int = 1) -> Dataset:
    """Small problems as TRL reads them: chat messages, or texts that end as the template ends a prompt; all so many times."""
    problems = times * [Problem(2 + at % 7, 3 + at // 7, (at % 5 + 1,), "Ann", "pens") for at in range(count)]
    texts = [problem.question for problem in problems]
    prompts: Sequence[Any] = (
        [f"{text}<sep>" for text in texts] if plain else [[{"role": "user", "content": text}] for text in texts]
    )
    return Dataset.from_dict({"prompt": prompts, "answer": [str(problem.answer) for problem in problems]})


def correct(completions: Sequence[Any], answer: Sequence[str], **_: object) -> list[float]:
    """1 where the last number is the answer."""
    texts = [found if isinstance(found, str) else found[-1]["content"] for found in completions]
    numbers = [re.findall(r"\d+", text) for text in texts]
    return [float(bool(found) and found[-1] == wanted) for found, wanted in zip(numbers, answer, strict=True)]


@dataclass
class Trained:
    """What a training did."""

    trainer: GRPOTrainer
    drawn: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """Step → (row, content id) of each replay of its last rollout."""
    births: dict[int, list[int]] = field(default_factory=dict)
    prompts: dict[int, list[str]] = field(default_factory=dict)
    """Step → the question of each row."""

    @property
    def log(self) -> list[Mapping[str, float]]:
        """The log of each step."""
        return [line for line in self.trainer.state.log_history if "loss" in line]

    def column(self, name: str) -> list[float]:
        """One number of each step."""
        return [line[name] for line in self.log]

    @property
    def weights(self) -> Weights:
        return {name: value.detach().clone() for name, value in self.trainer.model.named_parameters()}


def settings(output: Path, **other: Any) -> GRPOConfig:
    """Two prompts of four responses a step."""
    values: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "run_name": "run",
    }
    return GRPOConfig(output_dir=str(output), **values | other)


def trainer_of(
    output: Path, *, prompts: int = 4, times: int = 1, plain: bool = False, rewards: Any = correct, **given: Any
) -> GRPOTrainer:
    """A trainer of the quickstart's model."""
    hooks = {name: given.pop(name) for name in ("rollout_func", "eval_dataset", "callbacks") if name in given}
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=rewards,
        args=settings(output, **given),
        train_dataset=questions(prompts, plain=plain, times=times),
        processing_class=tokenizer(),
        **hooks,
    )


@dataclass
class Engine:
    """In the place of ``VLLMGeneration``: the same response to every prompt, each token with log-prob −0.5."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    """Prompts and ``num_generations`` of each call."""
    logprobs_mode: str = "processed_logprobs"
    """That a server was started with."""

    @property
    def vllm_client(self) -> Engine:
        return self

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": self.logprobs_mode}}

    def sync_weights(self) -> None:
        """Nothing holds weights."""

    def generate(self, prompts: list[list[int]], num_generations: int, **_: Any) -> tuple[Any, ...]:
        self.calls.append((len(prompts), num_generations))
        tokens = tokenizer().encode("=1=1<eos>", add_special_tokens=False)
        return prompts, [tokens] * len(prompts), [[[-0.5]] * len(tokens)] * len(prompts), None


def with_engine(trainer: GRPOTrainer, engine: Engine) -> None:
    """Have a trainer generate by the engine from now on."""
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, engine, -1


def trained(
    output: Path,
    replay: TrlReplay | None = None,
    *,
    resume: Path | None = None,
    rewards: Any = correct,
    success: float = 1.0,
    engine: Engine | None = None,
    **given: Any,
) -> Trained:
    """Train, with replay or as TRL does."""
    if replay is None:
        done = Trained(trainer_of(output, **given))
    else:
        hooked = replay

        def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
            result = hooked.rollout(prompts, trainer)
            if trainer.model.training:
                replays = [(row, member) for row, member in enumerate(replays_of(hooked)) if member is not None]
                done.drawn[trainer.state.global_step] = [(row, member.content_id) for row, member in replays]
                done.births[trainer.state.global_step] = [member.birth for _, member in replays]
                done.prompts[trainer.state.global_step] = [question_text(prompt) for prompt in prompts]
            return result

        rewarded = hooked.reward(rewards, success=success)
        done = Trained(trainer_of(output, rewards=[rewarded], rollout_func=rollout, **given))
    if engine is not None:
        with_engine(done.trainer, engine)
    done.trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return done


def replays_of(replay: TrlReplay) -> Sequence[Trajectory | None]:
    """The replay in each row of the rollout that waits for its rewards."""
    batch = replay._batch
    assert batch is not None
    return batch.replays


def own_environment() -> dict[str, str]:
    """For a process that imports rlep and the tests as this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRL_EXPERIMENTAL_SILENCE": "1"}
