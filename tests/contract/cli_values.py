"""A small run for the tests of the command line: the shipped model, four questions, and how words are put together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

MODEL = Path(__file__).parents[2] / "rlep" / "quickstart" / "model"
ROWS = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]


def jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(command: str, config: str, overrides: Sequence[str]) -> list[str]:
    return [command, config, *(word for text in overrides for word in ("--set", text))]
