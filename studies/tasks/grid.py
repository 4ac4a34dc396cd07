"""The task of studies/grid-*.toml: the shortest way through a grid, and a tiny base that walks and has forgotten where to.

    python studies/tasks/grid.py runs/grid             (needs rlep[tasks])
    python studies/tasks/grid.py runs/grid --base      (and a base, as in studies/bases; some minutes)

Questions are reasoning-gym's shortest_path with 5 × 5 cells, a quarter of them blocked, whose way takes 4 to 8 moves and has at
least three right answers; its cells are written without spaces, row by row. A response is ``<answer>right down down</answer>``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlep.core.errors import DataError
from rlep.core.seeds import generator_for, seed_for
from rlep.core.types import Message
from rlep.data.prompt_files import write_verl
from rlep.data.prompt_rows import PromptRow
from rlep.quickstart.base_model import BATCH, PretrainStage, make_base
from rlep.quickstart.toy_tokenizer import SPECIAL
from rlep.services.verifier.gym_tasks import make

SEED = 20260214
SIDE, BLOCKED = 5, 0.25
MOVES = {"right": 1, "down": SIDE, "left": -1, "up": -SIDE}
VOCABULARY = (*SPECIAL, "*", "#", "O", "X", " ", *MOVES, "<answer>", "</answer>")
CONTEXT = 64
FEWEST, MOST = 4, 8
"""Moves of a way."""
LEAST_WAYS = 3
STAGES = (PretrainStage("lessons", 1500, 4e-3), PretrainStage("walks", 10, 2e-3))
TRAIN, HELD_OUT = 512, 200
SETTINGS = {"min_rows": SIDE, "max_rows": SIDE, "min_cols": SIDE, "max_cols": SIDE, "p_blocked": BLOCKED}


def neighbours(grid: str, cell: int) -> dict[int, str]:
    """Open cells beside a cell, with the move that leads there; ``grid`` is row after row."""
    column = cell % SIDE
    found = {}
    for move, step in MOVES.items():
        beyond = (move == "right" and column == SIDE - 1) or (move == "left" and column == 0)
        if not beyond and 0 <= cell + step < SIDE * SIDE and grid[cell + step] != "X":
            found[cell + step] = move
    return found


def ways(grid: str) -> tuple[dict[int, int], dict[int, int]]:
    """For each cell from which ``#`` can be reached: moves to it, and how many shortest ways there are."""
    distance, count, edge = {grid.index("#"): 0}, {grid.index("#"): 1}, [grid.index("#")]
    while edge:
        after: dict[int, int] = {}
        for cell in edge:
            for other in neighbours(grid, cell):
                if other not in distance:
                    after[other] = after.get(other, 0) + count[cell]
        distance |= dict.fromkeys(after, distance[edge[0]] + 1)
        count |= after
        edge = list(after)
    return distance, count


def is_question(grid: str) -> bool:
    """Whether its way has a length that is asked for, and enough right answers."""
    distance, count = ways(grid)
    start = grid.index("*")
    return FEWEST <= distance.get(start, 0) <= MOST and count[start] >= LEAST_WAYS


def reserved(grid: str) -> bool:
    """Whether a question may be in the data sets; the base never sees these, a quarter of all."""
    return seed_for(SEED, "reserved", grid) % 4 == 0


def response(grid: str, cells: Sequence[int]) -> str:
    """The moves from cell to cell."""
    moves = [neighbours(grid, one)[other] for one, other in pairwise(cells)]
    return f"<answer>{' '.join(moves)}</answer>"


def shortest(grid: str, generator: np.random.Generator) -> str:
    """A shortest way, drawn move by move."""
    distance, _ = ways(grid)
    cells = [grid.index("*")]
    while distance[cells[-1]]:
        nearer = [cell for cell in neighbours(grid, cells[-1]) if distance.get(cell) == distance[cells[-1]] - 1]
        cells.append(nearer[int(generator.integers(len(nearer)))])
    return response(grid, cells)


def walk(grid: str, generator: np.random.Generator) -> str:
    """A legal walk to anywhere that does not turn back at once, of as many moves as a way may have."""
    cells = [grid.index("*")]
    for _ in range(int(generator.integers(FEWEST, MOST + 1))):
        found = list(neighbours(grid, cells[-1]))
        onward = [cell for cell in found if cell not in cells[-2:]] or found
        cells.append(onward[int(generator.integers(len(onward)))])
    return response(grid, cells)


def drawn_grid(generator: np.random.Generator) -> str:
    """A question that reasoning-gym could ask."""
    while True:
        cells = np.where(generator.random(SIDE * SIDE) < BLOCKED, "X", "O")
        start, end = generator.choice(SIDE * SIDE, 2, replace=False)
        cells[start], cells[end] = "*", "#"
        grid = "".join(cells)
        if is_question(grid):
            return grid


def texts(stage: str, step: int) -> list[tuple[str, str]]:
    """One batch of the teacher's questions and responses."""
    generator, pairs = generator_for(SEED, stage, step), list[tuple[str, str]]()
    while len(pairs) < BATCH:
        grid = drawn_grid(generator)
        if not reserved(grid):
            pairs.append((grid, shortest(grid, generator) if stage == "lessons" else walk(grid, generator)))
    return pairs


def rows(size: int) -> list[PromptRow]:
    """``size`` questions that no base has seen, each once; reasoning-gym's entry is the reference."""
    found: dict[str, PromptRow] = {}
    for entry in make("shortest_path", size=30 * size, seed=SEED % 1000, settings=SETTINGS).entries:
        grid = "".join(cell for row in json.loads(entry)["metadata"]["matrix"] for cell in row)
        if is_question(grid) and reserved(grid):
            found.setdefault(grid, PromptRow((Message("user", grid),), entry, "shortest_path"))
    if len(found) < size:
        raise DataError(f"shortest_path gave {len(found)} of {size} questions")
    return list(found.values())[:size]


def main(directory: Path) -> None:
    """Write ``train.parquet`` and ``held-out.parquet``."""
    directory.mkdir(parents=True, exist_ok=True)
    questions = rows(TRAIN + HELD_OUT)
    write_verl(directory / "train.parquet", questions[:TRAIN], split="train", ability="shortest_path")
    write_verl(directory / "held-out.parquet", questions[TRAIN:], split="heldout", ability="shortest_path")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if "--base" in sys.argv[2:]:
        make_base(Path(sys.argv[1]) / "model", VOCABULARY, CONTEXT, STAGES, texts)
