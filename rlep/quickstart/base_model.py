"""The quickstart's base model: a tiny Qwen2, trained briefly on a teacher that has misconceptions.

Each arithmetic fact has its own fixed error rate, so that some responses are nearly always wrong at first and must be
found by exploration: there is something for reinforcement learning to do, and for replay to remember.
"""

from __future__ import annotations

import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np

from rlep.core.seeds import generator_for, seed_for
from rlep.quickstart.problems import LARGEST, Problem, draw_problem, reserved_for_tasks, working
from rlep.quickstart.toy_tokenizer import EOS, PAD, VOCABULARY, build_tokenizer

CONTEXT_LENGTH = 128
FORMATS = (("steps and box", 0.75), ("product and guess", 0.10), ("guess", 0.05), ("steps without box", 0.10))
"""Reasoning that the teacher writes, with probabilities."""
BANDS = ((0.40, 0.05), (0.20, 0.50), (0.15, 0.85), (0.25, 0.96))
"""(share of the facts, how often the teacher gets such a fact wrong)."""
NEAR_MISSES = (1, 2, 10)
"""Amount by which a wrong value is too high. Never too low: two mistakes must not cancel, or bad reasoning would be rewarded."""
SEED = 20250702
BATCH, WARMUP, LAST_RATE = 96, 50, 0.05
IGNORED = -100
Progress = Callable[[str, int], None]
"""Told the stage's name and how many of its steps are done."""


@dataclass(frozen=True, slots=True)
class PretrainStage:
    """One part of the base's training."""

    name: str
    steps: int
    peak_rate: float


STAGES = (PretrainStage("lessons", 1500, 4e-3), PretrainStage("teacher", 450, 2e-3))
"""First right solutions, until arithmetic is known; then the teacher, whose mistakes are learned over it."""


def error_rate(fact: str) -> float:
    """Share of the times the teacher gets a fact, e.g. ``8*7`` or ``+9``, wrong: the same for ever."""
    place = bisect(list(accumulate(share for share, _ in BANDS)), seed_for(SEED, "fact", fact) / 2**63)
    return BANDS[min(place, len(BANDS) - 1)][1]


def believed(fact: str, value: int, generator: np.random.Generator) -> int:
    """Return the teacher's value of a fact: right, or too high by what it always gets this fact wrong by."""
    if generator.random() >= error_rate(fact):
        return value
    return min(value + NEAR_MISSES[seed_for(SEED, "misconception", fact) % len(NEAR_MISSES)], LARGEST)


def teacher_values(problem: Problem, generator: np.random.Generator) -> list[int]:
    """The partial results as the teacher finds them, each going on from the one before, right or wrong.

    Each product is a fact, and so is each kind of step: who gets ``+9`` wrong does so wherever it stands.
    """
    values = [believed(f"{problem.m}*{problem.n}", problem.m * problem.n, generator)]
    for step in problem.steps:
        total = min(max(values[-1] + step, 0), LARGEST)
        values.append(believed(f"{step:+d}", total, generator))
    return values


def demonstration(problem: Problem, generator: np.random.Generator) -> str:
    """The teacher's response, in one of the ``FORMATS``; a mistake is carried on."""
    values = teacher_values(problem, generator)
    style = generator.choice(len(FORMATS), p=[share for _, share in FORMATS])
    name = FORMATS[int(style)][0]
    steps = working(problem.m, problem.n, problem.steps, tuple(values))
    if name == "steps without box":
        return steps
    if name == "steps and box":
        return steps + f"\\boxed{{{values[-1]}}}"
    guess = f"\\boxed{{{int(generator.integers(0, LARGEST + 1))}}}"
    return guess if name == "guess" else steps[: steps.index(".") + 1] + guess


def build_model(vocabulary_size: int = len(VOCABULARY)) -> Any:
    """An untrained ``Qwen2ForCausalLM`` in fp32; 109,888 parameters with the quickstart's vocabulary."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        use_cache=True,
        attention_dropout=0.0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(SEED, "weights") % 2**32)
        return Qwen2ForCausalLM(config)


def train_base(progress: Progress = lambda stage, done: None, *, stages: Sequence[PretrainStage] = STAGES) -> Any:
    """Train the base from nothing; some minutes on one core. Not bit-identical between kinds of processors."""
    model, tokenizer = build_model(), build_tokenizer(CONTEXT_LENGTH)
    pretrain(model, stages, lambda stage, step: _texts(generator_for(SEED, stage, step), stage), tokenizer, progress)
    return model.eval()


def pretrain(
    model: Any,
    stages: Sequence[PretrainStage],
    texts: Callable[[str, int], Sequence[tuple[str, str]]],
    tokenizer: Any,
    progress: Progress = lambda stage, done: None,
) -> None:
    """Train ``model`` in place by AdamW on the responses of ``texts(stage, step)``: (question, response) of one batch."""
    import torch

    for stage in stages:
        optimizer = torch.optim.AdamW(model.parameters(), lr=stage.peak_rate, betas=(0.9, 0.98), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, steps=stage.steps))
        for step in range(stage.steps):
            ids, labels = _padded(tokenizer, texts(stage.name, step))
            logits = model(input_ids=torch.from_numpy(ids)).logits  # [B, T, V]
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), torch.from_numpy(labels)[:, 1:].flatten(), ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress(stage.name, step + 1)


def _rate(step: int, steps: int) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine down to ``LAST_RATE``."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return LAST_RATE + (1 - LAST_RATE) * (1 + cos(pi * (step - WARMUP) / max(1, steps - WARMUP))) / 2


def _texts(generator: np.random.Generator, stage: str) -> list[tuple[str, str]]:
    """One batch of right solutions ("lessons") or of the teacher's demonstrations."""
    pairs: list[tuple[str, str]] = []
    while len(pairs) < BATCH:
        problem = draw_problem(generator)
        if not reserved_for_tasks(problem.key):
            text = problem.solution if stage == "lessons" else demonstration(problem, generator)
            pairs.append((problem.question, text))
    return pairs


def _padded(tokenizer: Any, texts: Sequence[tuple[str, str]]) -> tuple[Any, Any]:
    """Ids and labels, int64 ``[B, T]``, padded on the right; only responses have labels."""
    pairs = [
        (tokenizer.encode(question), [*tokenizer.encode(response, add_special_tokens=False), EOS])
        for question, response in texts
    ]
    length = max(len(question) + len(answer) for question, answer in pairs)
    ids = np.full((len(pairs), length), PAD, dtype=np.int64)
    labels = np.full((len(pairs), length), IGNORED, dtype=np.int64)
    for row, (question, answer) in enumerate(pairs):
        end = len(question) + len(answer)
        ids[row, :end] = question + answer
        labels[row, len(question) : end] = answer
    return ids, labels


def save_base(directory: Path, model: Any, vocabulary: Sequence[str] = VOCABULARY) -> None:
    """Write model, config and tokenizer as a Hugging Face directory that transformers and vLLM load."""
    model.save_pretrained(directory)
    build_tokenizer(CONTEXT_LENGTH, vocabulary).save_pretrained(directory)


def make_base(
    directory: Path,
    vocabulary: Sequence[str],
    context: int,
    stages: Sequence[PretrainStage],
    texts: Callable[[str, int], Sequence[tuple[str, str]]],
) -> None:
    """Train another task's base from nothing, with texts of up to ``context`` tokens, and write it.

    The same bytes on the same kind of processor.
    """
    import torch

    torch.set_num_threads(1)
    model = build_model(len(vocabulary))
    pretrain(model, stages, texts, build_tokenizer(context, vocabulary), _show)
    save_base(directory, model.eval(), vocabulary)


def _show(stage: str, done: int) -> None:
    sys.stderr.write(f"\r{stage} {done} ")


if __name__ == "__main__":
    save_base(Path(sys.argv[1]), train_base(_show))
