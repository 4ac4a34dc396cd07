"""The choice of how many requests are in flight, against costs that are written down here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rlep.algorithms.in_flight import InFlight


def chosen(in_flight: InFlight, costs: Mapping[int, float], steps: int, tokens: int = 100) -> list[int]:
    """The numbers of ``steps`` steps, each of which costs what ``costs`` says of its number."""
    numbers = []
    for _ in range(steps):
        numbers.append(in_flight.now)
        in_flight.record(costs[in_flight.now] * tokens, tokens)
    return numbers


def test_every_number_is_tried_twice_from_the_whole_step_downwards_and_the_best_is_used() -> None:
    costs = {40: 1.0, 20: 0.8, 10: 0.85}
    # one step to warm up, two each, the best, and at step 8 the number below it once more
    assert chosen(InFlight(10, 4), costs, 10) == [40, 40, 40, 20, 20, 10, 10, 20, 10, 20]


def test_the_search_ends_where_fewer_are_a_tenth_worse() -> None:
    costs = {80: 1.0, 40: 1.2}
    assert chosen(InFlight(10, 8), costs, 7) == [80, 80, 80, 40, 40, 80, 80]


def test_a_neighbour_that_became_cheaper_is_found_again() -> None:
    in_flight = InFlight(10, 2)
    assert chosen(in_flight, {20: 1.0, 10: 1.05}, 7) == [20, 20, 20, 10, 10, 20, 20]
    later = chosen(in_flight, {20: 2.0, 10: 1.0}, 40)
    assert later[0] == 20
    assert set(later[-7:]) == {10}


@pytest.mark.parametrize(("sets", "numbers"), [(1, {5}), (3, {5, 10, 15}), (6, {5, 10, 20, 30}), (8, {5, 10, 20, 40})])
def test_numbers_are_whole_sets_up_to_the_whole_step(sets: int, numbers: set[int]) -> None:
    in_flight = InFlight(5, sets)
    costs = {number: number / 100 for number in numbers}  # the fewer the better
    assert set(chosen(in_flight, costs, 12)) == numbers
    assert in_flight.now == 5


def test_costs_are_per_token_and_steps_without_tokens_say_nothing() -> None:
    in_flight = InFlight(10, 2)
    for seconds, tokens in ((9.0, 1), (2.0, 2), (3.0, 3), (40.0, 20), (0.0, 0), (60.0, 30)):
        in_flight.record(seconds, tokens)
    assert in_flight.now == 20  # 1 s a token against 2
