"""The bound of the log-prob handshake: rounding passes, wrong weights do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import WeightSyncError
from rlep.core.types import Float32Array
from rlep.engines.weights.weight_update import Probe, SharedMemoryWeights, WeightUpdate

GIVEN = np.arange(3, dtype=np.int32)
COUNTS = (8, 12)


def weight_update() -> WeightUpdate:
    probes = [Probe(GIVEN, np.zeros(n, np.int32), np.full(n, -2.0, np.float32)) for n in COUNTS]
    return WeightUpdate(7, (), SharedMemoryWeights(Path("nowhere"), 0, "00"), tuple(probes), tolerance=0.25)


def scores(gaps: list[float]) -> list[Float32Array]:
    return np.split(np.array(gaps, np.float32) - np.float32(2.0), [COUNTS[0]])


def test_one_improbable_token_may_differ_by_ten_times_the_average() -> None:
    assert weight_update().max_logprob_difference(scores([2.5, -0.5] + [0.0] * 18)) == 2.5  # 0.15 on average
    assert weight_update().max_logprob_difference(scores([-0.25] * 20)) == 0.25


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.5] * 10 + [-0.25] * 10, "by 0.375 on average and 0.5 at most"),
        ([0.0] * 19 + [3.0], "by 0.15 on average and 3 at most"),
        ([0.0] * 19 + [float("nan")], "by nan on average"),
        ([0.0] * 19 + [float("inf")], "by inf on average"),
    ],
)
def test_other_weights_are_refused(gaps: list[float], said: str) -> None:
    with pytest.raises(WeightSyncError, match=f"version 7: log-probs differ.* {said}.* allowed are 0.25 and 2.5$"):
        weight_update().max_logprob_difference(scores(gaps))
