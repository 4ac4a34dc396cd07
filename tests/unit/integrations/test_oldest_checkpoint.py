"""The oldest step at which a trainer's run may go on."""

from __future__ import annotations

from pathlib import Path

from rlep.integrations.checkpoints import oldest_checkpoint


def test_the_oldest_checkpoint_counts_or_else_the_step(tmp_path: Path) -> None:
    assert oldest_checkpoint(tmp_path / "none", "checkpoint-", 7) == 7
    for name in ("checkpoint-4", "checkpoint-3", "checkpoint-best", "other-1"):
        (tmp_path / name).mkdir()
    assert oldest_checkpoint(tmp_path, "checkpoint-", 7) == 3
    assert oldest_checkpoint(tmp_path, "checkpoint-", 2) == 2


def test_one_without_its_part_is_none(tmp_path: Path) -> None:
    """verl removes the model of an old checkpoint, and keeps the folder."""
    for step in (1, 3):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        (tmp_path / f"global_step_{step}" / "data.pt").touch()
    assert oldest_checkpoint(tmp_path, "global_step_", 4, part="actor") == 1
    (tmp_path / "global_step_1" / "actor").rmdir()
    assert oldest_checkpoint(tmp_path, "global_step_", 4, part="actor") == 3


def test_all_count_where_the_part_of_each_lies_on_other_nodes(tmp_path: Path) -> None:
    for step in (1, 3):
        (tmp_path / f"global_step_{step}").mkdir()
    assert oldest_checkpoint(tmp_path, "global_step_", 4, part="actor") == 1
