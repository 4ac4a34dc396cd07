"""Mini-batches that keep verl's number of updates when rows are added."""

from __future__ import annotations

from itertools import count, islice

import pytest

from rlep.integrations.mini_batches import cut, padded, shared

PAPER = {"updates": 8, "size": 64, "n": 16}
"""512 questions a step, 64 an update."""


def test_the_papers_step_has_eight_updates_and_not_nine() -> None:
    rows = 512 * (16 + 2)
    assert rows / (64 * 16) == 9  # mini-batches as they were
    assert cut(rows // 8, **PAPER) == 72
    assert rows / (72 * 16) == 8


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (1024, 64),  # no replay: as verl
        (1025, 65),  # 65 · 16 = 1040
        (1040, 65),
        (1000, 64),  # responses failed: as with all
        (64 * 32, 128),  # as many replays as fresh ones
        (64 * 116, 464),  # more replays than the group has fresh ones
    ],
)
def test_mini_batches_are_the_smallest_that_hold_the_rows_of_an_update(rows: int, found: int) -> None:
    assert cut(rows, **PAPER) == found


def test_ranks_and_micro_batches_divide_them() -> None:
    # 8 ranks of 6 rows: 65 · 16 = 1040 is no multiple of 48; 66 · 16 = 1056 is.
    assert cut(1025, **PAPER, multiple=48) == 66
    # Log-probs go in 5 rows a rank: 8 · 65 · 16 = 8320 is a multiple of 40, 8 · 66 · 16 = 8448 is not.
    assert cut(1025, **PAPER, whole=40) == 65
    assert cut(1041, **PAPER, whole=40) == 70


def of_groups(*sizes: int) -> list[list[int]]:
    """Groups of so many rows, which are counted through."""
    rows = count()
    return [[*islice(rows, size)] for size in sizes]


def cuts(order: list[int], rows: int) -> list[list[int]]:
    """An order as verl's worker cuts it."""
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def test_an_update_has_its_groups_whole_and_padding_behind_them() -> None:
    shares = shared(of_groups(3, 2, 2, 3), 2)
    assert shares == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert padded(shares, 6) == [0, 1, 2, 3, 4, 10, 5, 6, 7, 8, 9, 11]
    assert padded(shares, 5) == [*range(10)]


def test_groups_whose_rows_are_apart_come_together() -> None:
    shares = shared([[0, 2, 5], [1, 3], [4]], 3)
    assert padded(shares, 3) == [0, 2, 5, 1, 3, 6, 4, 7, 8]


@pytest.mark.parametrize(("groups", "sizes"), [(2, [4, 4]), (5, [4, 8, 8]), (7, [8, 8, 12])])
def test_groups_that_are_missing_leave_no_update_to_padding_alone(groups: int, sizes: list[int]) -> None:
    assert [len(share) for share in shared(of_groups(*[4] * groups), 3)] == sizes


@pytest.mark.parametrize("replays", [0, 1, 2])
def test_large_micro_batches_pad_every_update_alike(replays: int) -> None:
    """1024 groups of 5 and on half of them replays, in 8 ranks of 32: 257 · 5 rows are no multiple of 256, 512 · 5 are."""
    groups = of_groups(*[5 + replays, 5] * 512)
    shares = shared(groups, 4)
    size = cut(max(map(len, shares)), 4, size=256, n=5, multiple=256)
    assert size == (512 if replays else 256)
    rows = sum(map(len, groups))
    order = padded(shares, size * 5)
    assert sorted(order) == [*range(4 * size * 5)]
    for update in cuts(order, size * 5):
        assert sum(row < rows for row in update) == rows // 4


@pytest.mark.parametrize("updates", [1, 2, 7, 64])
def test_every_number_of_rows_keeps_the_updates(updates: int) -> None:
    for more in range(10):
        groups = of_groups(*(4 + (more * group) % 7 for group in range(3 * updates)))
        shares = shared(groups, updates)
        largest = max(map(len, shares))
        size = cut(largest, updates, size=3, n=4, multiple=6)
        assert largest <= size * 4 < max(13, largest + 12)  # less than lcm(4, 6) rows more
        assert size * 4 % 6 == 0
        found = cuts(padded(shares, size * 4), size * 4)
        assert len(found) == updates
        assert all(rows[: len(share)] == share for share, rows in zip(shares, found, strict=True))
