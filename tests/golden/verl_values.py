"""Write ``verl_values.json``: verl's own importance weights, masks, metrics and whitened advantages of one small batch.

verl is not a dependency: run this where it can be imported, e.g. with ``pip install --target DIR --no-deps verl tensordict
omegaconf antlr4-python3-runtime==4.9.3 codetiming pyvers importlib_metadata orjson`` and ``PYTHONPATH=DIR``.
"""

from __future__ import annotations

import importlib
import json
import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

LENGTHS = (5, 3, 1, 6, 2, 4)
GROUPS = (0, 0, 0, 1, 1, 1)
REWARDS = (1.0, -1.0, -1.0, 1.0, 1.0, -1.0)
IMPORTANCE: dict[str, dict[str, Any]] = {
    "token truncated": {"rollout_is": "token", "rollout_is_threshold": 1.5},
    "token IcePop": {"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"},
    "sequence truncated": {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
    "sequence IcePop": {"rollout_is": "sequence", "rollout_is_threshold": "0.5_1.5"},
}
REJECTION: dict[str, dict[str, Any]] = {
    "token": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.6"},
    "sequence": {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.8_1.6"},
    "geometric": {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.6"},
}
METRICS = ("rollout_is_mean", "rollout_is_eff_sample_size", "chi2_token", "chi2_seq", "rollout_rs_masked_fraction")


def padded(rows: list[list[float]]) -> torch.Tensor:
    """``[S, T]`` float64, zeros after each row."""
    table = torch.zeros(len(rows), max(LENGTHS), dtype=torch.float64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return table


def unpadded(table: torch.Tensor) -> list[float]:
    """``[R]`` the values of the response tokens, row by row."""
    return [float(value) for row, length in zip(table, LENGTHS, strict=True) for value in row[:length]]


def main() -> None:
    """Draw the batch and write what verl makes of it."""
    helper: Any = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    draw = random.Random(7)
    old = [[round(-2 * draw.random(), 3) for _ in range(length)] for length in LENGTHS]
    sampler = [[min(round(value + draw.gauss(0, 0.35), 3), -0.001) for value in row] for row in old]
    mask = padded([[1.0] * length for length in LENGTHS])
    values: dict[str, Any] = {"verl": version("verl"), "lengths": LENGTHS, "groups": GROUPS, "rewards": REWARDS}
    values |= {"old": unpadded(padded(old)), "sampler": unpadded(padded(sampler))}
    for name, options in (IMPORTANCE | REJECTION).items():
        weights, kept, metrics = helper.compute_rollout_correction_and_rejection_mask(
            old_log_prob=padded(old), rollout_log_prob=padded(sampler), response_mask=mask, **options
        )
        factors = mask if weights is None else weights.batch["rollout_is_weights"]
        given = {key: metrics[f"rollout_corr/{key}"] for key in METRICS if f"rollout_corr/{key}" in metrics}
        values[name] = {**options, "factors": unpadded(factors * kept), **given}
    rewards = torch.zeros_like(mask)
    for place, length in enumerate(LENGTHS):
        rewards[place, length - 1] = REWARDS[place]
    whole = algorithms.compute_reinforce_plus_plus_outcome_advantage(
        rewards, mask, config=type("C", (), {"gamma": 1.0})
    )
    centred = algorithms.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, index=list(GROUPS))
    values["REINFORCE++"] = [float(row[0]) for row in whole[0]]
    values["REINFORCE++-baseline"] = [float(row[0]) for row in centred[0]]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    Path(__file__).with_suffix(".json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
