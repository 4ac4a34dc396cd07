"""The update of a rehearsal, as ranks take their parts of it."""

import numpy as np
import pytest

from rlep.algorithms.packing import Budget, pack
from rlep.engines.learner.packed_row import largest_update


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("budget", "longest", "lengths"),
    [(100, 40, [40, 40, 20]), (100, 50, [50, 50]), (100, 99, [99]), (100, 150, [150])],
)
def test_every_rank_gets_three_micro_batches_as_full_as_the_budget_allows(
    ranks: int, budget: int, longest: int, lengths: list[int]
) -> None:
    batch = largest_update(ranks, budget, longest)
    assignment = pack(batch, ranks, Budget(budget))
    assert len(assignment) == ranks
    for micro_batches in assignment:
        parts = [sorted(np.diff(batch.offsets)[members].tolist(), reverse=True) for members in micro_batches]
        assert parts == [lengths] * 3
    assert (batch.sampled_lengths == np.diff(batch.offsets) - 1).all()
    assert not batch.advantages.any()
