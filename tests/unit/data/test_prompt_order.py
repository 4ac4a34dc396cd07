"""Which prompts a step uses: a function of (seed, step) and nothing else."""

import pytest

from rlep.core.errors import DataError
from rlep.data.prompts import PromptOrder


def test_an_epoch_offers_each_prompt_once_and_drops_the_rest() -> None:
    order = PromptOrder(count=10, per_step=4, seed=1)
    assert order.steps_per_epoch == 2
    for epoch in range(20):
        used = [*order.step(2 * epoch), *order.step(2 * epoch + 1)]
        assert len(used) == len(set(used)) == 8
        assert set(used) <= set(range(10))


def test_what_an_epoch_drops_comes_back_in_others() -> None:
    order = PromptOrder(count=10, per_step=4, seed=1)
    uses = [0] * 10
    for step in range(200):  # 100 epochs of 8 draws among 10
        for index in order.step(step):
            uses[index] += 1
    assert sum(uses) == 800
    # Binomial(100, 0.8): mean 80, sd 4; five sd.
    assert all(60 <= count <= 100 for count in uses)


def test_a_step_is_the_same_whenever_and_in_whatever_order_it_is_asked_for() -> None:
    forwards = [PromptOrder(50, 8, seed=3).step(step).tolist() for step in range(30)]
    order = PromptOrder(50, 8, seed=3)
    assert [order.step(step).tolist() for step in reversed(range(30))] == forwards[::-1]
    assert [PromptOrder(50, 8, seed=4).step(step).tolist() for step in range(30)] != forwards


def test_the_order_is_the_same_on_every_machine() -> None:
    assert PromptOrder(10, 4, seed=1).step(0).tolist() == GOLDEN


GOLDEN = [6, 1, 0, 8]


def test_each_epoch_has_an_order_of_its_own() -> None:
    order = PromptOrder(count=8, per_step=8, seed=0)
    assert len({tuple(order.step(epoch)) for epoch in range(10)}) == 10


def test_a_step_may_use_the_whole_dataset() -> None:
    assert sorted(PromptOrder(5, 5, seed=0).step(7)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("count", "per_step"), [(3, 4), (0, 1), (3, 0)])
def test_a_step_that_cannot_have_distinct_prompts_is_refused(count: int, per_step: int) -> None:
    with pytest.raises(DataError, match=f"uses {per_step} prompts, the dataset has {count}"):
        PromptOrder(count, per_step, seed=0)


def test_a_refill_avoids_what_the_step_has_used_until_nothing_is_left() -> None:
    order = PromptOrder(count=12, per_step=4, seed=5)
    used = set(order.step(3).tolist())
    for round_number, wanted, got in [(1, 5, 5), (2, 5, 3), (3, 5, 0)]:  # 12 - 4 = 8 further prompts
        more = order.refill(3, round_number, wanted, used)
        assert len(more) == len(set(more.tolist())) == got
        assert used.isdisjoint(more.tolist())
        used |= set(more.tolist())
    assert used == set(range(12))


def test_a_refill_is_a_function_of_seed_step_and_round() -> None:
    order = PromptOrder(count=100, per_step=4, seed=5)
    assert order.refill(3, 1, 6, {1, 2}).tolist() == PromptOrder(100, 4, seed=5).refill(3, 1, 6, [2, 1]).tolist()
    assert order.refill(3, 1, 6, ()).tolist() != order.refill(3, 2, 6, ()).tolist()
    assert order.refill(3, 1, 6, ()).tolist() != order.refill(4, 1, 6, ()).tolist()
