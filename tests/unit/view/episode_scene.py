"""A run of which some responses are episodes, as its files show them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STEP, TEXTS, SAMPLES = (
    "rollouts/step-000001.parquet",
    "rollouts/step-000001.tokens.parquet",
    "samples/step-000002.parquet",
)
KINDS = {"sampled": pa.list_(pa.bool_()), "ends": pa.list_(pa.int32())}
QWEN = ("\nuser\n<tool_response>\n", "\n</tool_response>\nassistant\n")
"""What a template writes around an answer, its special tokens left out."""


def called(name: str, **arguments: object) -> str:
    """A call of a tool, as models of today write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def episode(*said: str) -> list[str]:
    """The parts of an episode: what the policy wrote, and in turn what the environment answered, in its template's marks."""
    return [one if at % 2 == 0 else one.join(QWEN) for at, one in enumerate(said)]


def ends_of(parts: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, parts)))


def give_turns(run: Path, group: int, episodes: Sequence[Sequence[str]]) -> None:
    """Make episodes of a group of step 1, each part of three tokens, and of all samples of the evaluation at step 2."""

    def told(row: Mapping[str, object]) -> dict[str, object]:
        if row["group"] != group:
            return {"sampled": None, "ends": None}
        parts = episodes[int(str(row["member"])) % len(episodes)]
        mask = [at % 2 == 0 for at in range(len(parts)) for _ in range(3)]
        values = {"token_ids": list(range(len(mask))), "logprobs": [np.float16(-one / 2) for one in mask]}
        return values | {"text": "".join(parts), "sampled": mask, "ends": ends_of(parts)}

    rewrite(run / TEXTS, [row | told(row) for row in pq.read_table(run / TEXTS).to_pylist()])
    samples = pq.read_table(run / SAMPLES).to_pylist()
    played = [episodes[at % len(episodes)] for at in range(len(samples))]
    texts = [{"response": "".join(parts), "ends": ends_of(parts)} for parts in played]
    rewrite(run / SAMPLES, [row | text for row, text in zip(samples, texts, strict=True)])


def rewrite(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows in place of a file's, with the columns that it had and those of episodes that they have."""
    had = pq.read_schema(file)
    more = [pa.field(name, kind) for name, kind in KINDS.items() if name in rows[0] and name not in had.names]
    pq.write_table(pa.Table.from_pylist(list(rows), pa.schema([*had, *more])), file)
