"""Three steps of SkyRL's own preparation, checks and advantages around the page's generator; prints what became of them."""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from importlib import import_module
from typing import Any

import numpy as np
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses Python 3.11's, which skyrl's types name

base = import_module("skyrl.train.generators.base")
preparation = import_module("skyrl.train.generators.utils")
page = import_module("skyrl_replay")
ANSWERS = {0: ["7", "8", "1", "7"], 1: ["1", "2"], 2: ["3", "7"]}
"""Step → the answers to the first question, and to the second; 7 and 8 are right."""


class Scripted(base.GeneratorInterface):  # type: ignore[name-defined, misc]
    """Answers as the script has them: a token for the digit, and the EOS."""

    routes: Any = None

    async def generate(self, input_batch: Any) -> Any:
        about = input_batch["batch_metadata"]
        texts = ANSWERS[about.global_step] * 2 if about.training_phase == "train" else ["9"] * 8
        assert len(input_batch["prompts"]) == len(input_batch["env_extras"]) == len(texts)
        self.asked = len(texts)
        return {
            "prompt_token_ids": [[1, len(prompt[0]["content"])] for prompt in input_batch["prompts"]],
            "response_ids": [[int(text), 2] for text in texts],
            "rewards": [
                [0.0, float(text in "78")] if about.global_step == 2 else float(text in "78") for text in texts
            ],
            "loss_masks": [[1, 1] for _ in texts],
            "stop_reasons": ["stop"] * len(texts),
            "rollout_metrics": None,
            "rollout_logprobs": None if about.global_step == 2 else [[-0.5, -0.25] for _ in texts],
            "trajectory_generation_times": [0.5 for _ in texts],
            "trajectory_time_splits": {"llm": [0.25 for _ in texts], "env": [0.125 for _ in texts]},
            "rollout_expert_indices": self.routes,
        }


def step_of(generator: Any, step: int, phase: str) -> tuple[Any, list[str]]:
    """One batch as the trainer prepares and checks it."""
    questions = ["Ann has 2 bags of 3. One more?", "Ben has 3 bags of 2. One more?"]
    rows = [
        {"prompt": [{"role": "user", "content": text}], "env_class": "gsm8k", "env_extras": {}, "uid": str(number)}
        for number, text in enumerate(questions)
    ]
    batch, uids = preparation.prepare_generator_input(rows, 4, {}, "gsm8k", phase, step)
    output = asyncio.run(generator.generate(batch))
    import_module("skyrl.train.utils.trainer_utils").validate_generator_output(len(batch["prompts"]), output)
    return output, uids


def advantages(output: Any, uids: list[str]) -> list[float]:
    """GRPO's, as SkyRL computes them, not divided by the deviation."""
    import torch

    rewards = torch.tensor([value if isinstance(value, list) else [0.0, value] for value in output["rewards"]])
    grpo = import_module("skyrl.backends.skyrl_train.utils.ppo_utils").compute_grpo_outcome_advantage
    values, _ = grpo(rewards, torch.ones_like(rewards), np.array(uids), grpo_norm_by_std=False)
    return [round(float(value), 6) for value in values[:, 0]]


def main() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
    inner = Scripted()
    generator = page.Replaying(inner, page.replayer(tokenizer, "run"), 4)
    told: dict[str, Any] = {"steps": []}
    outputs = []
    for step in ANSWERS:
        output, uids = step_of(generator, step, "train")
        outputs.append(output)
        told["steps"].append(
            {
                "asked": inner.asked,
                "answers": [ids[0] for ids in output["response_ids"]],
                "prompts": [ids[1] for ids in output["prompt_token_ids"]],
                "repetitions": [each.repetition_id for each in output["trajectory_ids"]],
                "logprobs": [row[0] for row in output["rollout_logprobs"] or ()],
                "advantages": advantages(output, uids),
            }
        )
    # As asynchronous training and dynamic sampling do; step 2 has no log-probs and stays alone.
    together = preparation.concatenate_generator_outputs(outputs[:2])
    told["together"] = len(together["response_ids"])
    told["times"] = (together.get("trajectory_time_splits") or {}).get("llm")
    evaluated, _ = step_of(generator, 2, "eval")
    told["evaluated"] = [ids[0] for ids in evaluated["response_ids"]]
    told["refused"] = refused(tokenizer)
    inner.routes = [[] for _ in ANSWERS[1] * 2]
    try:
        step_of(generator, 1, "train")
    except ValueError as error:
        told["unfit"] = str(error)
    sys.stdout.write(json.dumps(told) + "\n")


def refused(tokenizer: Any) -> str:
    """What ``get_generator`` says of a correction for the sampler."""
    config = import_module("skyrl.train.config").SkyRLTrainConfig()
    config.trainer.algorithm.off_policy_correction.tis_ratio_type = "token"
    parent = page.BasePPOExp
    parent.get_generator = lambda *_: Scripted()
    try:
        object.__new__(page.Experiment).get_generator(config, tokenizer, None)
    except ValueError as error:
        return str(error)
    return ""


main()
