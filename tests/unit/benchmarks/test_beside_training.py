"""What ``benchmarks/console.py --training`` makes of steps and blocks."""

from __future__ import annotations

import pytest

from benchmarks.parts.beside_training import Block, StepTime, compared, within

STEPS = [StepTime(10.0, 2.0), StepTime(12.0, 2.0), StepTime(15.0, 3.0), StepTime(18.0, 3.0), StepTime(20.0, 2.0)]
"""Written at these times: from 8 to 10, 10 to 12, 12 to 15, …"""


@pytest.mark.parametrize(
    ("begun", "ended", "seconds"),
    [(8.0, 20.0, [2.0, 2.0, 3.0, 3.0, 2.0]), (8.5, 19.9, [2.0, 3.0, 3.0]), (12.0, 15.0, [3.0]), (12.1, 17.9, [])],
)
def test_steps_count_that_lie_wholly_in_a_block(begun: float, ended: float, seconds: list[float]) -> None:
    assert within(STEPS, Block(True, begun, ended)) == seconds


def test_the_ratio_is_that_of_the_medians() -> None:
    blocks = [Block(False, 8.0, 12.0), Block(True, 12.0, 18.0), Block(False, 18.0, 20.0)]
    found = compared(STEPS, blocks)
    assert found == {"step_s": [2.0, 3.0], "steps": [3, 2], "ratio": 1.5, "interval": [1.5, 1.5]}


def test_the_interval_is_that_of_drawn_blocks() -> None:
    """Of two live blocks of one step each the medians are 2, 2.5 and 3: a draw of both alike has a share of one half."""
    blocks = [Block(False, 8.0, 12.0), Block(True, 12.0, 15.0), Block(True, 18.0, 20.0)]
    found = compared(STEPS, blocks)
    assert (found["step_s"], found["ratio"], found["interval"]) == ([2.0, 2.5], 1.25, [1.0, 1.5])
