"""Tables on terminals that are narrower than what they hold."""

import io

import pytest
from rich.console import Console

from rlep.cli.tables import facts_table

WORDS = "512 of 16 fresh responses and up to 2 replays (pool pool in /a/directory/whose/name/is/longer/than/a/line/is) "
FACTS = [("groups a step", WORDS * 2), ("  weights, Adam", "[3] bytes")]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_value_that_is_too_wide_goes_on_in_its_column(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(facts_table("plan", "a run", FACTS))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    start = next(line for line in lines if "512" in line).index("512")
    told = "".join(line[start:] for line in lines[3:])  # behind the blank line, the heading and its rule
    assert told.replace(" ", "") == "".join(value for _, value in FACTS).replace(" ", "")
    assert any(line.lstrip().startswith("weights, Adam") for line in lines)
