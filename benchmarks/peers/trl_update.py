"""One update of the same batch by TRL's ``GRPOTrainer``; run by ``benchmarks/learner.py``.

``python trl_update.py MODEL BATCH.npz RESULT.json ROWS REPEATS``. Generation is overridden: the prompts, responses and
their old log-probs come from the file, and so do the rewards, whose mean over each group is zero, so that they are the
advantages. What TRL spends on generating, decoding and scoring is not counted.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Batch:
    """The sequences of the file."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        parts = np.split(self.arrays["tokens"], self.arrays["offsets"][1:-1])
        lengths = self.arrays["prompt_lengths"]
        self.prompts = [part[:n].tolist() for part, n in zip(parts, lengths, strict=True)]
        self.responses = [part[n:].tolist() for part, n in zip(parts, lengths, strict=True)]
        olds = np.split(self.arrays["old_logprobs"], np.cumsum([len(r) for r in self.responses])[:-1])
        self.olds = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(old) for old in olds], batch_first=True)

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """In place of generation."""
        return {"prompt_ids": self.prompts, "completion_ids": self.responses, "logprobs": None}

    def rewards(self, completions: list[str], **_: object) -> list[float]:
        """In place of a verifier."""
        return [float(value) for value in self.arrays["advantages"]]


class FixedTrainer(GRPOTrainer):
    """Adds the file's old log-probs to what was generated, and notes losses and the time that generation took."""

    fixed: Batch
    losses: list[float]
    generating: float

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.process_time()
        generated = super()._generate_and_score_completions(inputs)
        generated["old_per_token_logps"] = self.fixed.olds
        self.generating += time.process_time() - started
        return generated

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        self.losses.append(float(loss.detach()))
        return loss


class Clock(TrainerCallback):
    """CPU seconds of each optimizer step without generation."""

    def __init__(self) -> None:
        self.trainer: FixedTrainer
        self.seconds: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        """The first micro-batch is about to begin."""
        self.trainer.generating = 0.0
        self.started = time.process_time()

    def on_step_end(self, *_: object, **__: object) -> None:
        """The optimizer has stepped."""
        self.seconds.append(time.process_time() - self.started - self.trainer.generating)


def tokenizer_of(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word for every token id; the trainer decodes with it."""
    words = {f"w{index}": index for index in range(vocabulary)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        eos_token="w0",
        pad_token="w0",
        unk_token="w0",
    )


def main() -> None:
    """Train one update to warm up and some more to measure."""
    model_directory, batch_file, result, rows, repeats = sys.argv[1:]
    torch.set_num_threads(1)
    batch = Batch(batch_file)
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    count = len(batch.prompts)
    group = int((batch.arrays["groups"] == batch.arrays["groups"][0]).sum())
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output,
            max_steps=1 + int(repeats),
            learning_rate=0.0,
            weight_decay=0.1,
            max_grad_norm=1.0,
            per_device_train_batch_size=int(rows),
            gradient_accumulation_steps=count // int(rows),
            num_generations=group,
            max_completion_length=max(map(len, batch.responses)),
            loss_type="dapo",
            scale_rewards="none",
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
        trainer = FixedTrainer(
            model=model,
            reward_funcs=batch.rewards,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["w1"] * (count // group)}),
            processing_class=tokenizer_of(model.config.vocab_size),
            callbacks=[clock],
            rollout_func=batch.rollout,
        )
        trainer.fixed, trainer.losses, clock.trainer = batch, [], trainer
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer.train()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    loss = sum(trainer.losses[: count // int(rows)])
    Path(result).write_text(
        json.dumps({"cpu_seconds": min(clock.seconds[1:]), "peak_bytes": peak, "loss": loss}) + "\n"
    )


if __name__ == "__main__":
    main()
