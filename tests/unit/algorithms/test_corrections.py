"""Importance weights and masks: numbers by hand, and those of verl's own functions (``tests/golden/verl_values.py``)."""

from __future__ import annotations

import json
from dataclasses import replace
from math import e
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlep.algorithms.corrections import Corrected, corrected, correction_metrics, importance
from rlep.config.replay import ReplayConfig
from rlep.config.section import CorrectionConfig
from rlep.config.training import LossConfig
from rlep.core.types import SequenceBatch
from tests.unit.algorithms.algorithm_values import batch_of

VERL: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "verl_values.json").read_text())
TRUNCATED = CorrectionConfig(weight="token", cap=2.0)
ICEPOP = {"low": 0.5, "high": 1.5}
REJECTION = {"low": 1 / 1.6, "high": 1 / 0.8}
"""verl's bounds of ``k1`` are those of μ / π, 0.8 and 1.6; ours are of π / μ."""
GOLDEN = {
    "token truncated": CorrectionConfig(weight="token", cap=1.5),
    "token IcePop": CorrectionConfig(weight="token", mask="token", **ICEPOP),
    "sequence truncated": CorrectionConfig(weight="sequence", cap=1.5),
    "sequence IcePop": CorrectionConfig(weight="sequence", mask="sequence", **ICEPOP),
    "token": CorrectionConfig(mask="token", **REJECTION),
    "sequence": CorrectionConfig(mask="sequence", **REJECTION),
    "geometric": CorrectionConfig(mask="geometric", **REJECTION),
}
NAMES = {
    "rollout_is_mean": "weight",
    "rollout_is_eff_sample_size": "effective",
    "chi2_token": "chi2",
    "chi2_seq": "chi2_sequence",
    "rollout_rs_masked_fraction": "masked",
}


def three(old: list[float], behaviour: list[float]) -> SequenceBatch:
    """Three sequences of 3, 2 and 1 response tokens: fresh, replayed, and fresh but not trained."""
    return batch_of(
        [3, 2, 1],
        replayed=[False, True, False],
        trained=[True, True, False],
        old=np.array(old),
        behaviour=np.array(behaviour),
    )


def metrics_of(part: Corrected) -> dict[str, float]:
    """Metrics by the part of their name that is their own."""
    return {name.split("/")[1]: value for name, value in correction_metrics([part], "fresh").items()}


@pytest.mark.parametrize("name", GOLDEN)
def test_weights_masks_and_metrics_are_those_of_verl(name: str) -> None:
    expected = VERL[name]
    batch = batch_of(VERL["lengths"], old=np.array(VERL["old"]), behaviour=np.array(VERL["sampler"]))
    part = corrected(batch, GOLDEN[name], replayed=False)
    assert part.weights == pytest.approx(expected["factors"], rel=1e-6)
    found = metrics_of(part)
    for theirs, ours in NAMES.items():
        if theirs in expected:
            assert found[ours] == pytest.approx(expected[theirs], rel=1e-6), ours


def test_the_golden_corrections_differ_from_each_other() -> None:
    assert len({tuple(VERL[name]["factors"]) for name in GOLDEN}) == len(GOLDEN)


def test_weights_are_the_learners_probability_over_the_samplers_up_to_the_cap() -> None:
    # Equal; e times as likely under the learner, cut at 2; a quarter as likely (log 4 = 1.386).
    batch = three([-1.0, -0.5, -2.386294, -9, -9, -9], [-1.0, -1.5, -1.0, np.nan, np.nan, 0])
    part = corrected(batch, TRUNCATED, replayed=False)
    assert part.weights == pytest.approx([1.0, 2.0, 0.25], abs=1e-6)
    assert part.truncated.tolist() == [False, True, False]
    five = corrected(batch, CorrectionConfig(weight="token", cap=5.0), replayed=False)
    assert five.weights == pytest.approx([1.0, e, 0.25], abs=1e-6)


def test_sequences_weigh_the_product_or_the_geometric_mean_of_their_tokens() -> None:
    # log ρ = 0.1, 0.2, 0.3 of the fresh sequence: product e^0.6, geometric mean e^0.2.
    batch = three([-0.9, -0.8, -0.7, 0, 0, 0], [-1.0, -1.0, -1.0, 0, 0, 0])
    for level, weight in (("sequence", e**0.6), ("geometric", e**0.2)):
        part = corrected(batch, CorrectionConfig(weight=level, cap=9.0), replayed=False)
        assert part.weights == pytest.approx([weight] * 3, rel=1e-6)


def test_a_mask_leaves_out_and_a_cap_truncates_what_is_left() -> None:
    # Ratios e^-1, 1, e, e^2 with low 0.5, high 5, cap 2: out, 1, cut to 2, out.
    batch = batch_of([4], old=np.array([-2.0, -1.0, 0.0, 1.0]), behaviour=np.full(4, -1.0))
    part = corrected(batch, CorrectionConfig(weight="token", cap=2.0, mask="token", low=0.5, high=5.0), replayed=False)
    assert part.weights.tolist() == [0, 1, 2, 0]
    assert part.masked.tolist() == [True, False, False, True]
    found = metrics_of(part)
    assert (found["weight"], found["truncated"], found["masked"]) == (0.75, 0.25, 0.5)
    assert found["effective"] == pytest.approx(3**2 / (4 * 5))


def test_fresh_and_replayed_tokens_have_a_correction_each() -> None:
    batch = three([-1.0, -0.5, -1.0, -1.0, 0.0, -1.0], [-1.0, -1.5, -1.0, -1.0, -2.0, np.nan])
    replay = ReplayConfig(count=1, correction=CorrectionConfig(weight="token", cap=3.0))
    for loss, rule, factors in (
        (LossConfig(correction=TRUNCATED), ReplayConfig(), [1, 2, 1, 1, 1, 1]),
        (LossConfig(), replay, [1, 1, 1, 1, 3, 1]),
        (LossConfig(correction=TRUNCATED), replay, [1, 2, 1, 1, 3, 1]),
    ):
        found = importance(batch, loss, rule)
        assert found is not None
        assert found.tolist() == factors
    assert importance(batch, LossConfig(), ReplayConfig()) is None


def test_everything_masked_is_no_effective_sample() -> None:
    batch = batch_of([2], old=np.zeros(2), behaviour=np.full(2, -3.0))
    found = metrics_of(corrected(batch, CorrectionConfig(mask="geometric", high=1.1), replayed=False))
    assert (found["weight"], found["masked"], found["effective"]) == (0, 1, 0)


def test_unknown_log_probs_are_refused() -> None:
    batch = three([0] * 6, [np.nan] * 6)
    with pytest.raises(ValueError, match="need the old and the behaviour log-probs"):
        corrected(replace(batch, old_logprobs=None), TRUNCATED, replayed=False)
    with pytest.raises(ValueError, match=r"every token it weighs; some are unknown \(NaN\)"):
        corrected(batch, TRUNCATED, replayed=False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "nothing bounds a ratio here: set cap"),
        ({"weight": "sequence"}, "nothing bounds a ratio here: set cap"),
        ({"cap": 2.0}, "cap truncates a weight: set weight"),
        ({"weight": "token", "mask": "token"}, "set mask and one of those"),
        ({"weight": "token", "high": 2.0}, "set mask and one of those"),
        ({"mask": "token", "low": 2.0, "high": 1.0}, "low = 2 is above high = 1"),
    ],
)
def test_a_description_that_says_nothing_or_half_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CorrectionConfig(**values)
