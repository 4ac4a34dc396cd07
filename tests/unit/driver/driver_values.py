"""Small configs, prompts, answers and counts for the tests of ``rlep.driver``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlep.algorithms.loss_values import SOURCES
from rlep.config.schema import Config
from rlep.config.settings import parse_config
from rlep.core.jsonl import read_lines
from rlep.core.types import (
    Float32Array,
    Prompt,
    Provenance,
    Sampling,
    SequenceBatch,
    Trajectory,
    Verdict,
    prompt_id_of,
)
from rlep.data.prompts import PromptReport, PromptSet
from rlep.methods.replay_method import settings_of

TOKENIZER = "tok"
P, G, M, B = 4, 3, 2, 2
MAX_TOKENS = 8
TIS = {"correction": {"weight": "token", "cap": 2.0}}
"""``[loss]`` or ``[replay]`` with truncated importance sampling."""
BASE = b"base"


def config_of(**sections: Mapping[str, Any]) -> Config:
    """P = 4, G = 3, M = 2, B = 2, answers of at most 8 tokens; ``sections`` are laid over it."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"name": "small", "steps": 4, "seed": 5},
        "rollout": {"prompts": P, "fresh": G, "max_tokens": MAX_TOKENS},
        "replay": {"count": M},
        "reward": {"overlong_buffer": 0},
        "update": {"prompts": B},
        "evaluation": {"every": 2, "samples": 2, "final_samples": 4},
        "checkpoint": {"every": 1, "keep": 2},
        "collection": {"samples": 4, "cap": 3},
    }
    for name, values in sections.items():
        method = settings_of(values["method"]) if "method" in values else {}
        tree.setdefault(name, {}).update({**method, **values})
    return parse_config(tree)


def prompts_of(count: int, *, prefix: str = "q", source: str = "math") -> tuple[Prompt, ...]:
    """Prompts of two tokens each."""
    return tuple(
        Prompt(prompt_id_of(f"{prefix}{i}", "2"), f"{prefix}{i}", "2", np.array([900 + i, 950], dtype=np.int32), source)
        for i in range(count)
    )


def prompt_set(count: int, *, prefix: str = "q") -> PromptSet:
    """``count`` prompts as a dataset."""
    return PromptSet(prompts_of(count, prefix=prefix), PromptReport(count, count, 0, 0, 0, 0, (), 2))


def answer_of(prompt: Prompt, number: int, *, length: int = 3) -> Trajectory:
    """A correct stored answer: its first token is 500 + ``number``."""
    tokens = np.array([500 + number, *range(1, length)], dtype=np.int32)
    verdict = Verdict("correct", "2", "math", "1")
    stored = np.full(length, -0.25, dtype=np.float32)
    provenance = Provenance("old", 0, TOKENIZER, Sampling(max_tokens=MAX_TOKENS))
    return Trajectory(prompt.id, tokens, stored, "stop", verdict, provenance, 0.0, f"old/{number}")


def batch_bytes(batch: SequenceBatch) -> bytes:
    """Everything a batch holds, to the bit."""
    arrays = (batch.tokens, batch.offsets, batch.prompt_lengths, batch.advantages, batch.trained, batch.groups)
    optional = (batch.replayed, batch.old_logprobs, batch.behaviour_logprobs)
    sampled = () if batch.sampled is None else (batch.sampled,)
    return b"|".join(b"" if array is None else array.tobytes() for array in (*arrays, *optional, *sampled))


def logprobs_of(batch: SequenceBatch, state: bytes) -> Float32Array:
    """What a fake learner with weights ``state`` says of a batch's sampled tokens, ``[R]``."""
    sampled = batch.sampled
    if sampled is None:
        parts = zip(batch.prompt_lengths, np.diff(batch.offsets), strict=True)
        sampled = np.concatenate([np.arange(length) >= prompt for prompt, length in parts])
    inside = batch.tokens[sampled]
    return (-((inside.astype(np.int64) * 7 + state[0]) % 100) / 100).astype(np.float32)


def sums_of(batch: SequenceBatch) -> dict[str, float]:
    """What a learner counts by source."""
    sources: dict[str, float] = {}
    for name, replayed in zip(SOURCES, (False, True), strict=True):
        rows = (batch.replayed == replayed) & batch.trained
        tokens = float(batch.sampled_lengths[rows].sum())
        sources |= {f"{name}/trajectories": float(rows.sum()), f"{name}/tokens": tokens, f"{name}/loss": 0.25}
        if tokens:
            mass = float((np.abs(batch.advantages[rows]) * batch.sampled_lengths[rows]).sum()) / tokens
            sources |= {f"{name}/advantage_mass": mass, f"{name}/ratio_mean": 1.0, f"{name}/ratio_max": 1.0}
            sources |= {f"{name}/clip_fraction_{end}": 0.0 for end in ("low", "high")}
            sources[f"{name}/dual_clip_fraction"] = 0.0
    return sources


def untimed(directory: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """(step, metrics) of every line, without what a clock says."""
    timed = ("time/", "rollout/tokens_per_second")
    return [
        (line["step"], {name: value for name, value in line["metrics"].items() if not name.startswith(timed)})
        for line in read_lines(directory / "metrics.jsonl")
    ]


def evaluations(directory: Path) -> list[dict[str, Any]]:
    """Every row, without what a clock says."""
    rows = read_lines(directory / "evaluations.jsonl")
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in rows]
