"""Held-out accuracy: n samples of every question, the statistics over questions, and every sample kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlep.algorithms.evaluation import EvaluationReport, Question, evaluate
from rlep.core.files import replace_with
from rlep.core.transcript import text_and_ends
from rlep.core.types import Int32Array, Prompt, Trajectory
from rlep.driver.clock import Clock
from rlep.driver.context import Run
from rlep.driver.rollout import bars, requests_for, verify_rollout

Decode = Callable[[Int32Array], str]
"""Response tokens ``[T]`` to text."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The statistics and what they were taken from."""

    report: EvaluationReport
    prompts: tuple[Prompt, ...]
    samples: tuple[tuple[Trajectory, ...], ...]
    """``[Q][n]``, in the order of ``prompts``."""


async def evaluate_policy(run: Run, prompts: Sequence[Prompt], samples: int) -> Evaluated:
    """Sample the generators' present policy ``samples`` times on every prompt and grade it."""
    rule = run.config.evaluation
    sampling = run.config.sampling(rule)
    # The seeds do not depend on the policy: compared runs are paired.
    requests = requests_for(prompts, samples, label="evaluate", seed=rule.seed, address=("evaluate",))
    graded: dict[str, tuple[Trajectory, ...]] = {}
    with bars(run.progress, len(requests), "evaluate") as shown:
        async with aclosing(verify_rollout(run, prompts, requests, sampling, bars=shown, clock=Clock())) as finished:
            async for prompt, members in finished:
                graded[prompt.id] = tuple(members)
    rows = tuple(graded[prompt.id] for prompt in prompts)
    scored = any(member.verdict.score is not None for members in rows for member in members)
    questions = [
        Question(
            prompt_id=prompt.id,
            data_source=prompt.data_source,
            correct=np.array([member.correct for member in members], dtype=np.bool_),
            answers=tuple(member.verdict.extracted for member in members),
            scores=tuple(member.verdict.credit for member in members) if scored else None,
            parts=tuple(member.verdict.parts for member in members),
        )
        for prompt, members in zip(prompts, rows, strict=True)
    ]
    return Evaluated(evaluate(questions, seed=rule.seed), tuple(prompts), rows)


def write_samples(path: Path, evaluated: Evaluated, decode: Decode) -> None:
    """Every sample as one Parquet row; the file appears whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = [(p, n, t) for p, ts in zip(evaluated.prompts, evaluated.samples, strict=True) for n, t in enumerate(ts)]
    texts = [text_and_ends(member.tokens, member.sampled, decode) for _, _, member in pairs]
    columns: dict[str, list[Any]] = {
        "prompt_id": [prompt.id for prompt, _, _ in pairs],
        "data_source": [prompt.data_source for prompt, _, _ in pairs],
        "question": [prompt.question for prompt, _, _ in pairs],
        "reference": [prompt.reference for prompt, _, _ in pairs],
        "sample": [number for _, number, _ in pairs],
        "response": [text for text, _ in texts],
        "extracted": [member.verdict.extracted for _, _, member in pairs],
        "status": [member.verdict.status for _, _, member in pairs],
        "finish_reason": [member.finish_reason for _, _, member in pairs],
        "tokens": [member.sampled_length for _, _, member in pairs],
        "policy_version": [member.provenance.policy_version for _, _, member in pairs],
    }
    if any(ends is not None for _, ends in texts):
        columns["ends"] = [ends for _, ends in texts]
    if any(member.verdict.reason for _, _, member in pairs):
        columns["reason"] = [member.verdict.reason or None for _, _, member in pairs]
    if any(member.verdict.score is not None for _, _, member in pairs):
        columns["score"] = [member.verdict.score for _, _, member in pairs]
        columns["parts"] = [json.dumps(dict(member.verdict.parts)) for _, _, member in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_with(path) as part:
        pq.write_table(pa.table(columns), part)
