"""Weights in shared memory: whole or absent, exactly the published set, readable by anyone who reads safetensors."""

from __future__ import annotations

import json
import resource
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlep.core.errors import ModelError, WeightSyncError
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import (
    SharedMemoryWeights,
    TensorSpec,
    check_layout,
    check_shared_memory,
    checkpoint_layout,
    read_layout,
)

WEIGHTS: dict[str, Tensor] = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),  # not contiguous
    "half": torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0, dtype=torch.float16),
    "empty": torch.zeros(0, 3),
}
LAYOUT = tuple(
    TensorSpec(name, str(weight.dtype).removeprefix("torch."), tuple(weight.shape)) for name, weight in WEIGHTS.items()
)


def write(
    directory: Path, weights: Iterable[tuple[str, Tensor]] = WEIGHTS.items(), version: int = 3
) -> SharedMemoryWeights:
    return SharedMemoryWriter(directory).write(LAYOUT, weights, version)


def test_safetensors_reads_back_every_bit(tmp_path: Path) -> None:
    shared = write(tmp_path)
    loaded = load_file(shared.path)
    assert loaded.keys() == WEIGHTS.keys()
    assert all(
        torch.equal(loaded[name], weight) and loaded[name].dtype == weight.dtype for name, weight in WEIGHTS.items()
    )
    specs, metadata = read_layout(shared.path)
    assert specs == {spec.name: spec for spec in LAYOUT}
    assert (int(metadata["policy_version"]), metadata["stamp"]) == (3, shared.stamp)
    assert set(check_shared_memory(shared, 3)) == set(LAYOUT)
    # 12 × 4 + 3 × 2 + 1 × 2 bytes of data
    assert sum(spec.nbytes for spec in LAYOUT) == 56
    assert shared.nbytes == shared.path.stat().st_size


def test_weights_are_rounded_to_the_dtype_of_the_layout(tmp_path: Path) -> None:
    exact = torch.tensor([1.0, 1.00390625, 1 / 3])
    shared = SharedMemoryWriter(tmp_path).write([TensorSpec("w", "bfloat16", (3,))], [("w", exact)], 1)
    # 8 bits of precision: 1 + 2^-8 is a tie, which goes to the even 1; 1/3 is between 85.25 and 85.5 of 2^-8
    assert load_file(shared.path)["w"].tolist() == [1.0, 1.0, 171 / 512]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(write(tmp_path).path.stat().st_mode) == 0o600


def test_tensors_that_do_not_follow_the_layout_are_never_readable(tmp_path: Path) -> None:
    items = list(WEIGHTS.items())
    for weights, message in (
        (items[:-1], "offered was nothing"),
        ([*items, ("more", torch.zeros(1))], "more was offered after all 4"),
        ([items[1], items[0], *items[2:]], "next weight is"),
        ([(items[0][0], items[0][1].t()), *items[1:]], "next weight is"),
    ):
        with pytest.raises(WeightSyncError, match=message):
            write(tmp_path, weights)
        (left,) = tmp_path.iterdir()
        with pytest.raises(WeightSyncError, match="cannot read weights"):
            read_layout(left)


def test_two_files_are_written_in_turn_and_the_one_before_stays_whole(tmp_path: Path) -> None:
    writer = SharedMemoryWriter(tmp_path)
    scaled = [{name: weight * factor for name, weight in WEIGHTS.items()} for factor in range(4)]
    first, second = (writer.write(LAYOUT, scaled[n].items(), n) for n in (0, 1))
    assert torch.equal(load_file(first.path)["matrix"], torch.zeros(4, 3))
    third = writer.write(LAYOUT, scaled[2].items(), 2)
    assert (third.path, third.path.stat().st_ino) == (first.path, first.path.stat().st_ino)
    assert torch.equal(load_file(third.path)["matrix"], 2 * WEIGHTS["matrix"])
    check_shared_memory(second, 1)
    with pytest.raises(WeightSyncError, match="holds policy version 2, not 0"):
        check_shared_memory(first, 0)
    with pytest.raises(WeightSyncError, match="offered was nothing"):  # fails after it destroyed version 1
        writer.write(LAYOUT, list(scaled[3].items())[:2], 3)
    with pytest.raises(WeightSyncError, match="cannot read weights"):
        check_shared_memory(second, 1)
    check_shared_memory(third, 2)
    check_shared_memory(writer.write(LAYOUT, scaled[3].items(), 3), 3)
    check_shared_memory(third, 2)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_version_written_again_is_another_segment(tmp_path: Path) -> None:
    writer = SharedMemoryWriter(tmp_path)
    first, *_ = (writer.write(LAYOUT, WEIGHTS.items(), 3) for _ in range(3))
    with pytest.raises(WeightSyncError, match="was written again after policy version 3"):
        check_shared_memory(first, 3)


def test_another_layout_gets_new_files(tmp_path: Path) -> None:
    writer = SharedMemoryWriter(tmp_path)
    for version in (1, 2):
        writer.write(LAYOUT, WEIGHTS.items(), version)
    half = [TensorSpec(spec.name, "bfloat16", spec.shape) for spec in LAYOUT]
    shared = writer.write(half, WEIGHTS.items(), 3)
    check_shared_memory(shared, 3)
    assert torch.equal(load_file(shared.path)["matrix"], WEIGHTS["matrix"].bfloat16())


def test_a_file_left_by_a_killed_writer_is_no_obstacle_and_never_taken(tmp_path: Path) -> None:
    left = write(tmp_path)
    with left.path.open("r+b") as file:
        file.write(bytes(8))  # as every writing begins
    with pytest.raises(WeightSyncError, match="cannot read weights"):
        check_shared_memory(left, 3)
    check_shared_memory(write(tmp_path), 3)
    with pytest.raises(WeightSyncError, match="was written again"):
        check_shared_memory(left, 3)


def test_no_room_is_reported_with_the_size_needed(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match=r"version 3 .*\(56 bytes\)"):
        write(tmp_path / "missing")
    full = Path("/dev/full")
    if full.exists():
        (tmp_path / "weights-0").symlink_to(full)  # replaced, never written through
        check_shared_memory(write(tmp_path), 3)


def test_a_full_file_system_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """A limit on file sizes stands for it: both are refused when the file is given its size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(WeightSyncError, match=r"File too large"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    check_shared_memory(write(tmp_path), 3)


def test_a_shortened_renumbered_or_missing_file_is_refused(tmp_path: Path) -> None:
    shared = write(tmp_path)
    with pytest.raises(WeightSyncError, match="holds policy version 3, not 4"):
        check_shared_memory(shared, 4)
    content = shared.path.read_bytes()
    shared.path.write_bytes(content[:-5])
    with pytest.raises(WeightSyncError, match=f"has {len(content) - 5} bytes"):
        check_shared_memory(shared, 3)
    with pytest.raises(WeightSyncError, match="cannot read weights"):
        read_layout(shared.path)
    shared.path.unlink()
    with pytest.raises(WeightSyncError, match="cannot read weight file"):
        check_shared_memory(shared, 3)


def test_layouts_are_compared_by_name_and_shape_not_order_or_dtype() -> None:
    expected = [TensorSpec("a", "bfloat16", (2, 3)), TensorSpec("b", "bfloat16", (4,))]
    check_layout(expected, [TensorSpec("b", "float32", (4,)), TensorSpec("a", "float32", (2, 3))])
    with pytest.raises(ModelError) as caught:
        check_layout(expected, [TensorSpec("a", "float32", (3, 2)), TensorSpec("c", "float32", ())])
    assert str(caught.value) == (
        "the learner offers 2 weights, the generator takes 2; 1 missing: b; 1 unexpected: c; "
        "1 of another shape: a (3, 2) not (2, 3)"
    )
    with pytest.raises(ModelError, match=r"12 missing: m0, m1, m10, m11, m2, m3, m4, m5 …"):
        check_layout([TensorSpec(f"m{i}", "float32", ()) for i in range(12)], [])


def test_a_checkpoints_layout_comes_from_one_file_or_from_its_shards(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    assert checkpoint_layout(tmp_path) == {"a": TensorSpec("a", "float32", (2, 3))}
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "second.safetensors")
    shards = {"weight_map": {"a": "model.safetensors", "b": "second.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(shards))
    assert checkpoint_layout(tmp_path).keys() == {"a", "b"}


@pytest.mark.parametrize("index", [None, "no json", "{}", '{"weight_map": {"a": "absent.safetensors"}}'])
def test_a_directory_without_usable_weights_is_refused(tmp_path: Path, index: str | None) -> None:
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match="no usable safetensors weights"):
        checkpoint_layout(tmp_path)
