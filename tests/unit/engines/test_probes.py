"""What a generator checks of a weight update: its own node's file, and log-probs within rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import ConfigError, WeightSyncError
from rlep.core.types import Float32Array
from rlep.engines.weights.weight_update import Probe, SharedMemoryWeights, WeightUpdate

GIVEN = np.arange(3, dtype=np.int32)
COUNTS = (8, 12)


def weight_update() -> WeightUpdate:
    probes = [Probe(GIVEN, np.zeros(n, np.int32), np.full(n, -2.0, np.float32)) for n in COUNTS]
    return WeightUpdate(
        7, (), SharedMemoryWeights(Path("nowhere"), 0, "00"), tuple(probes), tolerance=0.25, checksums=()
    )


def scores(gaps: list[float]) -> list[Float32Array]:
    return np.split(np.array(gaps, np.float32) - np.float32(2.0), [COUNTS[0]])


def test_the_mean_difference_is_what_may_be_as_large_as_the_tolerance() -> None:
    assert weight_update().logprob_difference(scores([4.0, -1.0] + [0.0] * 18)) == 0.25  # one improbable token
    assert weight_update().logprob_difference(scores([-0.25] * 20)) == 0.25


def test_a_generator_takes_the_file_of_its_own_node() -> None:
    files = {node: SharedMemoryWeights(Path(node), 8, "00") for node in ("a", "b")}
    update = replace(weight_update(), nodes=files)
    assert [update.on_node(node).source for node in ("a", "b")] == [files["a"], files["b"]]
    assert weight_update().on_node("a").source == weight_update().source  # whoever publishes names no nodes


def test_a_generator_on_a_node_without_the_learners_memory_says_which_settings_forbid_it(tmp_path: Path) -> None:
    there = SharedMemoryWeights(tmp_path / "weights" / "version-7", 8, "00")
    update = replace(weight_update(), source=there, nodes={"a": there})
    assert update.on_node("a").source == there  # gone with a learner that was lost: no fault of the settings
    with pytest.raises(ConfigError) as refused:
        update.on_node("b")
    assert str(refused.value) == (
        'generator.transfer = "shared_memory": this generator is on another node than the learner; set '
        'generator.transfer = "nccl" or "gloo", or have one node for both by label_selector of generator and learner'
    )
    (tmp_path / "weights").mkdir()  # another of Ray's nodes on the same machine
    assert update.on_node("b").source == there


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.5] * 10 + [-0.25] * 10, r"by 0.375 nats on average \(0.5 at most\)"),
        ([0.0] * 19 + [6.0], r"by 0.3 nats on average \(6 at most\)"),
        ([0.0] * 19 + [float("nan")], "by nan nats on average"),
        ([0.0] * 19 + [float("inf")], "by inf nats on average"),
    ],
)
def test_other_weights_are_refused(gaps: list[float], said: str) -> None:
    with pytest.raises(WeightSyncError, match=f"version 7: log-probs differ.* {said}.*; rounding explains 0.25$"):
        weight_update().logprob_difference(scores(gaps))
