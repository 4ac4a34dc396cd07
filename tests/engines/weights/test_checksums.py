"""A checksum sees every bit that flips, and what is read from a published file is what was published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlep.core.errors import WeightSyncError
from rlep.engines.weights.checksums import checksum
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import TensorSpec

CPU = torch.device("cpu")


def test_by_hand() -> None:
    assert int(checksum(torch.tensor([1, 2, -3], dtype=torch.int32))) == 2 + 6 + 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_one_flipped_bit_changes_it(dtype: torch.dtype) -> None:
    """Zeros and round numbers too, whose low bits are zero."""
    weights = torch.tensor([0.0, 1.0, -2.0, 0.1, 3e-5, -7.25], dtype=dtype)
    bits = weights.view(torch.int16 if dtype == torch.bfloat16 else torch.int32)
    before, width = int(checksum(weights)), 8 * weights.element_size()
    for at in range(len(bits)):
        for bit in range(width):
            flipped = bits.clone()
            flipped[at] ^= (1 << bit) - (1 << width if bit == width - 1 else 0)
            assert int(checksum(flipped.view(dtype))) != before, (at, bit)


def test_the_sum_of_shards_is_that_of_the_whole() -> None:
    weights = torch.randn(1000)
    assert int(sum(checksum(part) for part in weights.split(300))) % 2**40 == int(checksum(weights))


def test_a_bit_flipped_in_a_published_file_is_found_before_the_weight_is_used(tmp_path: Path) -> None:
    from rlep.engines.sampler.vllm_worker import published_tensors

    weights = {"first": torch.arange(6, dtype=torch.float32), "second": torch.zeros(4)}
    layout = [TensorSpec(name, "float32", tuple(weight.shape)) for name, weight in weights.items()]
    shared = SharedMemoryWriter(tmp_path).write(layout, weights.items(), 3)
    sums = {name: int(checksum(weight)) for name, weight in weights.items()}
    assert {name: one.tolist() for name, one in published_tensors(shared.path, sums, CPU)} == {
        name: weight.tolist() for name, weight in weights.items()
    }
    content = bytearray(shared.path.read_bytes())
    content[-1] ^= 0x80  # the sign of the last zero of ``second``, which no log-prob would show
    shared.path.write_bytes(content)
    read = published_tensors(shared.path, sums, CPU)
    assert next(read)[0] == "first"
    with pytest.raises(WeightSyncError, match=rf"^second in {shared.path} is not what was published$"):
        next(read)
