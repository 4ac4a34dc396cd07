"""The task of studies/grid-*.toml: its ways by a second search, and that the base sees none of its questions."""

from __future__ import annotations

import json
from itertools import chain, product

import pytest

from rlep.core.seeds import generator_for
from rlep.quickstart.toy_tokenizer import build_tokenizer
from rlep.services.verifier.gym import GymVerifier
from studies.tasks.grid import CONTEXT, FEWEST, MOST, VOCABULARY, reserved, rows, shortest, texts, walk, ways

# Start above, end below on the right, a wall between them with a hole at its right end: by hand, 4 right and 4 down. All ways go
# through the cell above the hole, to which 4 right and 1 down lead, in C(5, 1) = 5 orders; from there it is 3 down.
WALLED = "*OOOOOOOOOXXXXOOOOOOOOOO#"
STEPS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}


def arrives(grid: str, moves: tuple[str, ...]) -> bool:
    """Whether these moves lead from ``*`` to ``#`` over open cells, by walking."""
    row, column = divmod(grid.index("*"), 5)
    for move in moves:
        row, column = row + STEPS[move][0], column + STEPS[move][1]
        if not (0 <= row < 5 and 0 <= column < 5) or grid[5 * row + column] == "X":
            return False
    return grid[5 * row + column] == "#"


def moves_of(text: str) -> tuple[str, ...]:
    assert text.startswith("<answer>")
    assert text.endswith("</answer>")
    return tuple(text.removeprefix("<answer>").removesuffix("</answer>").split(" "))


def test_ways_are_those_that_a_search_over_all_moves_finds() -> None:
    distance, count = ways(WALLED)
    assert (distance[0], count[0]) == (8, 5)
    assert sum(arrives(WALLED, moves) for moves in product(STEPS, repeat=8)) == 5
    assert not any(arrives(WALLED, moves) for length in range(8) for moves in product(STEPS, repeat=length))


def test_a_shortest_way_arrives_and_all_are_drawn_while_walks_stay_on_open_cells() -> None:
    drawn = {moves_of(shortest(WALLED, generator_for(1, "test", trial))) for trial in range(300)}
    assert len(drawn) == 5
    assert all(arrives(WALLED, moves) for moves in drawn)
    lengths = set()
    for trial in range(300):
        moves = moves_of(walk(WALLED, generator_for(2, "test", trial)))
        row = column = 0
        for move in moves:
            row, column = row + STEPS[move][0], column + STEPS[move][1]
            assert min(row, column) >= 0
            assert WALLED[5 * row + column] != "X"
        lengths.add(len(moves))
    assert lengths == set(range(FEWEST, MOST + 1))


@pytest.mark.parametrize(("stage", "least", "most"), [("lessons", 1.0, 1.0), ("walks", 0.005, 0.1)])  # by chance 2.5 %
def test_lessons_arrive_by_a_shortest_way_and_none_is_a_question_of_the_data_sets(
    stage: str, least: float, most: float
) -> None:
    tokenizer = build_tokenizer(CONTEXT, VOCABULARY)
    pairs = [pair for step in range(10) for pair in texts(stage, step)]
    reached = 0
    for grid, text in pairs:
        assert not reserved(grid)
        distance, count = ways(grid)
        fewest = distance[grid.index("*")]
        assert FEWEST <= fewest <= MOST
        assert count[grid.index("*")] >= 3
        reached += len(moves_of(text)) == fewest and arrives(grid, moves_of(text))
        ids = tokenizer.encode(grid) + tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < CONTEXT
        assert tokenizer.decode(ids, skip_special_tokens=True) == grid + text
    assert len(pairs) == 10 * 96
    assert least <= reached / len(pairs) <= most


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_questions_are_graded_by_the_tasks_own_scorer() -> None:
    made = rows(12)
    assert len({row.messages[0].content for row in made}) == 12
    with GymVerifier() as verifier:
        for row in made:
            grid = row.messages[0].content
            assert reserved(grid)
            assert grid == "".join(chain.from_iterable(json.loads(row.reference)["metadata"]["matrix"]))
            right = shortest(grid, generator_for(2, "t"))
            wrong = right.replace("<answer>", f"<answer>{moves_of(right)[0]} ")
            verdicts = verifier.grade_pairs([(row.reference, right, False), (row.reference, wrong, False)])
            assert [verdict.status for verdict in verdicts] == ["correct", "wrong"]
