"""Mini-batches that keep verl's number of updates when rows are added."""

from __future__ import annotations

import pytest

from rlep.integrations.mini_batches import Cut, cut

PAPER = {"updates": 8, "size": 64, "n": 16}
"""512 questions a step, 64 an update."""


def test_the_papers_step_has_eight_updates_and_not_nine() -> None:
    rows = 512 * (16 + 2)
    assert rows / (64 * 16) == 9  # mini-batches as they were
    assert cut(rows, **PAPER) == Cut(72, rows)
    assert rows / (72 * 16) == 8


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (8192, Cut(64, 8192)),  # no replay: as verl
        (8193, Cut(65, 8320)),  # 8 · 65 · 16
        (8320, Cut(65, 8320)),
        (8000, Cut(64, 8192)),  # responses failed: the updates stay eight, as with all
        (512 * 32, Cut(128, 16384)),  # as many replays as fresh ones
        (512 * 116, Cut(464, 59392)),  # more replays than the group has fresh ones
    ],
)
def test_mini_batches_are_the_smallest_that_hold_all_rows(rows: int, found: Cut) -> None:
    assert cut(rows, **PAPER) == found


def test_ranks_and_micro_batches_divide_them() -> None:
    # 8 ranks of 6 rows: 65 · 16 = 1040 is no multiple of 48; 66 · 16 = 1056 is.
    assert cut(8193, **PAPER, multiple=48) == Cut(66, 8 * 66 * 16)
    # Log-probs go in 5 rows a rank: 8 · 65 · 16 = 8320 is a multiple of 40, 8 · 66 · 16 = 8448 is not.
    assert cut(8193, **PAPER, whole=40) == Cut(65, 8320)
    assert cut(8321, **PAPER, whole=40) == Cut(70, 8960)


@pytest.mark.parametrize("updates", [1, 2, 7, 64])
def test_every_number_of_rows_keeps_the_updates(updates: int) -> None:
    for rows in range(updates * 3 * 4, updates * 3 * 12, 5):
        size, padded = cut(rows, updates, size=3, n=4, multiple=6)
        assert rows <= padded == updates * size * 4
        assert size * 4 % 6 == 0
        assert size == 3 or padded - rows < updates * 12  # less than lcm(4, 6) rows an update
