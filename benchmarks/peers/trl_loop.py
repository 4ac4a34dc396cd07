"""Whole rollout steps of TRL's ``GRPOTrainer``; run by ``benchmarks/loop.py``.

``python trl_loop.py SETTINGS.json``: ``model``, ``questions`` (JSON lines with ``prompt``, a text or messages, and
``answer``), ``prompts``, ``answers``, ``tokens``, ``updates``, ``rows`` (of a micro-batch), ``steps``, ``threads``, ``lr`` and
``result``. A step is a rollout: generation by transformers, rewards, old log-probs and ``updates`` optimizer steps. Written to
``result`` are the ``seconds`` of each step but the first and the mean ``length`` of all responses.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LENGTHS: list[int] = []
"""Tokens of every response."""


class Clock(TrainerCallback):
    """When each rollout begins, and when the last one's updates end."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.times: list[float] = []

    def on_step_begin(self, _: Any, state: Any, *__: object, **___: object) -> None:
        """An optimizer step is about to begin; its batch is generated within it."""
        if state.global_step % self.updates == 0:
            self.times.append(time.perf_counter())

    def on_train_end(self, *_: object, **__: object) -> None:
        """The last one has stepped."""
        self.times.append(time.perf_counter())


def right(completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: object) -> list[float]:
    """1 where the last number is the answer, else -1."""
    LENGTHS.extend(map(len, completion_ids))
    texts = [found if isinstance(found, str) else found[-1]["content"] for found in completions]
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return [1.0 if found and found[-1] == wanted else -1.0 for found, wanted in zip(numbers, answer, strict=True)]


def main() -> None:
    """Train the steps."""
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    rows = [json.loads(line) for line in Path(given["questions"]).read_text().splitlines()]
    each = given["prompts"] * given["answers"] // given["updates"]
    clock = Clock(given["updates"])
    # ``AutoTokenizer`` would replace the file's splitting rules by those of the model type.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given["model"], padding_side="left")
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output,
            max_steps=given["steps"] * given["updates"],
            learning_rate=given["lr"],
            weight_decay=0.1,
            max_grad_norm=1.0,
            per_device_train_batch_size=given["rows"],
            gradient_accumulation_steps=each // given["rows"],
            steps_per_generation=given["updates"] * (each // given["rows"]),
            num_generations=given["answers"],
            max_completion_length=given["tokens"],
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            delta=10.0,
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32),
            reward_funcs=right,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
    seconds = [end - begin for begin, end in zip(clock.times[1:], clock.times[2:], strict=False)]
    Path(given["result"]).write_text(json.dumps({"seconds": seconds, "length": sum(LENGTHS) / len(LENGTHS)}) + "\n")


if __name__ == "__main__":
    main()
