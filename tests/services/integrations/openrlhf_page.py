"""Steps of OpenRLHF's own ``SamplesGenerator`` and advantages with the page's lines; prints what became of them."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

page = import_module("openrlhf_replay")
for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed"):
    sys.modules[name] = ModuleType(name)  # of GPUs; ring attention names its functions and is not used here
for function in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
    setattr(sys.modules["flash_attn.bert_padding"], function, None)
sys.modules["flash_attn.utils.distributed"].all_gather = None  # type: ignore[attr-defined]

making = import_module("openrlhf.trainer.ppo_utils.experience_maker")
GROUPS = {
    "Ann has 2 bags of 3. One more?": [["7", "7", "8", "6"], ["1", "2", "3", "4"]],
    "Ben?": [["7", "1", "2", "3"], ["1", "2", "3", "7"]],
}
"""Prompt → the answers of each of its groups, by step."""


class Scripted(page.Replaying):  # type: ignore[name-defined, misc]
    """Responses as an engine gives them, by the script."""

    def _generate_vllm(self, dataloader_iter: Any, num_prompts: int, **settings: Any) -> Any:
        next(dataloader_iter)
        samples = [
            self._process_response_into_experience(self.response(prompt, answer), max_len=64)
            for prompt, steps in GROUPS.items()
            for answer in steps[self.step]
        ]
        return samples, num_prompts, self.step == 1

    def response(self, prompt: str, answer: str) -> dict[str, Any]:
        asked = [9] * len(prompt.split())
        reward = float(answer == "7")
        return {
            "prompt": prompt,
            "label": "7",
            "observation_tokens": [*asked, int(answer), 2],
            "action_ranges": [(len(asked), len(asked) + 2)],
            "rollout_log_probs": None,
            "reward": reward,
            "scores": reward,
            "truncated": False,
        }


def settings(folder: str) -> Any:
    """The arguments that these parts read."""
    values: dict[str, Any] = {
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "micro_batch_size": 3},
        "algo": {
            "dynamic_filtering_enable": False,
            "advantage": {"is_correction_level": "off", "estimator": "dr_grpo", "gamma": 1.0},
        },
        "vllm": {"enable_sleep": False},
        "ckpt": {"path": folder, "load_enable": False},
        "train": {"dynamic_batch_enable": False},
        "reward": {"clip_range": (-10, 10), "overlong_buffer_len": None, "stop_properly_penalty_coef": None},
    }
    return json.loads(json.dumps(values), object_hook=lambda fields: SimpleNamespace(**fields))


def advantages(maker: Any, samples: list[Any]) -> list[list[float]]:
    """Those of each response's tokens, as OpenRLHF computes them over micro-batches of three rows."""
    batches = maker.split_rollout_samples(samples)
    for batch in batches:
        batch.kl = torch.zeros(batch.action_mask.shape)
    made = maker.compute_advantages_and_returns(batches)
    rows = [row for batch in made for row in zip(batch.advantages, batch.action_mask, strict=True)]
    return [[round(float(value), 6) for value in values[mask == 1]] for values, mask in rows]


def main() -> None:
    from transformers import PreTrainedTokenizerFast

    args = settings(f"{sys.argv[2]}/run")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
    strategy = SimpleNamespace(args=args)
    generator = Scripted(strategy, [0, 1], None, tokenizer, [])
    maker = making.RemoteExperienceMaker(None, None, None, None, SimpleNamespace(value=0.0), strategy, tokenizer)
    told = []
    for _ in range(2):
        samples, _, _, exhausted = generator.generate_samples()
        told.append(
            {
                "answers": [int(sample.sequences[0, -2]) for sample in samples],
                "lengths": [len(sample.sequences[0]) for sample in samples],
                "totals": [float(sample.total_length) for sample in samples],
                "logged": [float(sample.info["reward"]) for sample in samples],
                "exhausted": exhausted,
                "advantages": advantages(maker, samples),
            }
        )
    args.algo.advantage.is_correction_level = "token"
    try:
        Scripted(strategy, [0, 1], None, tokenizer, [])
    except ValueError as error:
        sys.stdout.write(json.dumps({"steps": told, "refused": str(error)}) + "\n")


main()
