"""What a generator checks of a weight update: its own node's file, log-probs within rounding, and that weights changed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import WeightSyncError
from rlep.core.types import Float32Array
from rlep.engines.sampler.weight_loading import Loaded
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


def test_a_generator_takes_the_file_of_its_own_node() -> None:
    files = {node: SharedMemoryWeights(Path(node), 8, "00") for node in ("a", "b")}
    update = replace(weight_update(), nodes=files)
    assert [update.on_node(node).source for node in ("a", "b", "c")] == [files["a"], files["b"], update.source]


HELD = ({"norm": 1, "qkv": 9}, {"norm": 1, "qkv": 8})
"""What two tensor-parallel workers hold; vLLM merges the projections."""


@pytest.mark.parametrize(
    ("published", "held", "refused"),
    [
        ({"norm": 2, "q": 5}, HELD, True),
        ({"norm": 2, "q": 5}, ({"norm": 1, "qkv": 9}, {"norm": 2, "qkv": 8}), False),
        ({"norm": 1, "q": 6}, HELD, False),  # seen in no weight of that name
        ({"norm": 1, "q": 5}, HELD, False),  # the same weights once more
    ],
)
def test_weights_that_stay_while_the_published_ones_change_are_refused(
    published: dict[str, int], held: tuple[dict[str, int], ...], refused: bool
) -> None:
    before, now = Loaded({"norm": 1, "q": 5}, HELD), Loaded(published, held)
    now.check_after(None)
    with (
        pytest.raises(WeightSyncError, match="1 weight changed from the publication before")
        if refused
        else nullcontext()
    ):
        now.check_after(before)


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
