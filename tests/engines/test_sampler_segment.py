"""Weight segments: whole or absent, exactly the published set, readable by anyone who reads safetensors."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlep.engines.segment import (
    Segment,
    TensorSpec,
    check_layout,
    check_segment,
    checkpoint_layout,
    read_layout,
    write_segment,
)
from rlep.errors import ModelError, WeightSyncError

WEIGHTS: dict[str, Tensor] = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),  # not contiguous
    "half": torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0, dtype=torch.float16),
    "empty": torch.zeros(0, 3),
}
LAYOUT = tuple(
    TensorSpec(name, str(weight.dtype).removeprefix("torch."), tuple(weight.shape)) for name, weight in WEIGHTS.items()
)


def write(path: Path, weights: Iterable[tuple[str, Tensor]] = WEIGHTS.items(), version: int = 3) -> Segment:
    return write_segment(path, LAYOUT, weights, version)


def test_safetensors_reads_back_every_bit(tmp_path: Path) -> None:
    segment = write(tmp_path / "weights")
    loaded = load_file(segment.path)
    assert loaded.keys() == WEIGHTS.keys()
    assert all(
        torch.equal(loaded[name], weight) and loaded[name].dtype == weight.dtype for name, weight in WEIGHTS.items()
    )
    assert read_layout(segment.path) == ({spec.name: spec for spec in LAYOUT}, 3)
    assert set(check_segment(segment, 3)) == set(LAYOUT)
    # 12 × 4 + 3 × 2 + 1 × 2 bytes of data
    assert sum(spec.nbytes for spec in LAYOUT) == 56
    assert segment.nbytes == segment.path.stat().st_size


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(write(tmp_path / "weights").path.stat().st_mode) == 0o600


def test_tensors_that_do_not_follow_the_layout_leave_no_file(tmp_path: Path) -> None:
    items = list(WEIGHTS.items())
    for weights, message in (
        (items[:-1], "offered was nothing"),
        ([*items, ("more", torch.zeros(1))], "more was offered after all 4"),
        ([items[1], items[0], *items[2:]], "next weight is"),
        ([(items[0][0], items[0][1].double()), *items[1:]], "next weight is"),
    ):
        with pytest.raises(WeightSyncError, match=message):
            write(tmp_path / "weights", weights)
        assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_previous_file_as_it_was(tmp_path: Path) -> None:
    segment = write(tmp_path / "weights")
    with pytest.raises(WeightSyncError):
        write(segment.path, [], version=4)
    check_segment(segment, 3)


def test_a_part_left_by_a_killed_writer_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "weights.part").write_bytes(b"half a header")
    check_segment(write(tmp_path / "weights"), 3)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_no_room_is_reported_with_the_size_needed(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match=r"version 3 .*\(56 bytes\)"):
        write(tmp_path / "missing" / "weights")
    full = Path("/dev/full")
    if full.exists():
        (tmp_path / "weights").symlink_to(full)  # replaced, never written through
        check_segment(write(tmp_path / "weights"), 3)


def test_a_changed_shortened_renumbered_or_missing_file_is_refused(tmp_path: Path) -> None:
    segment = write(tmp_path / "weights")
    content = segment.path.read_bytes()
    with pytest.raises(WeightSyncError, match="holds policy version 3, not 4"):
        check_segment(segment, 4)
    segment.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(WeightSyncError, match="digest"):
        check_segment(segment, 3)
    segment.path.write_bytes(content[:-5])
    with pytest.raises(WeightSyncError, match=f"has {len(content) - 5} bytes"):
        check_segment(segment, 3)
    with pytest.raises(WeightSyncError, match="cannot read weights"):
        read_layout(segment.path)
    segment.path.unlink()
    with pytest.raises(WeightSyncError, match="cannot read weight segment"):
        check_segment(segment, 3)


def test_layouts_are_compared_by_name_and_shape_not_order_or_dtype() -> None:
    expected = [TensorSpec("a", "bfloat16", (2, 3)), TensorSpec("b", "bfloat16", (4,))]
    check_layout(expected, [TensorSpec("b", "float32", (4,)), TensorSpec("a", "float32", (2, 3))])
    with pytest.raises(WeightSyncError) as caught:
        check_layout(expected, [TensorSpec("a", "float32", (3, 2)), TensorSpec("c", "float32", ())])
    assert str(caught.value) == (
        "2 weights offered, 2 expected; 1 missing: b; 1 unexpected: c; 1 of another shape: a (3, 2) not (2, 3)"
    )
    with pytest.raises(WeightSyncError, match=r"12 missing: m0, m1, m10, m11, m2, m3, m4, m5 …"):
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
