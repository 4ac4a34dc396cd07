"""After how many runs a pool has paid, by hand."""

from __future__ import annotations

import pytest

from scripts.pool_paid import saved


@pytest.mark.parametrize(
    ("accuracies", "left"),
    [
        ([0.02, 0.04, 0.06, 0.06], 10.0),  # from the third of four evaluations on
        ([0.02, 0.06, 0.04, 0.06], 0.0),  # never twice in a row
        ([0.06, 0.06, 0.02, 0.02], 30.0),
    ],
)
def test_what_is_saved_begins_with_the_first_of_two_evaluations_in_a_row(accuracies: list[float], left: float) -> None:
    # Two seeds, half of the difference on each side of their mean.
    seeds = {
        str(sign): {"curve": [[10.0 * n, n, 1.0, value + 0.01 * sign, 0.5] for n, value in enumerate(accuracies)]}
        for sign in (-1, 1)
    }
    seeds["1"]["curve"] += [[5.0, 9, 1.0, 0.9, 0.9], [6.0, 9, 1.0, 0.9, 0.9]]  # points that others do not have
    assert saved({"seeds": seeds}, 0.05, [0.0, 10.0, 20.0, 30.0]) == left
