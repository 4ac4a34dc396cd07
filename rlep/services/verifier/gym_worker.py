"""Jobs of workers with reasoning-gym: make one entry of a task, or score one answer with the task's own scorer."""

from __future__ import annotations

import ast
import json
import sys
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import create_dataset

_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks whose scorers evaluate an answer that is not the reference, in case it is a Python list."""
_BELOW_ONE = 1 - 2**-20
"""Further below 1 than what counts as a rounded 1 of a reward function."""


def make(request: str, index: str, /) -> tuple[bool, str]:
    """``(True, entry)``: one entry as JSON. ``request``: JSON of ``task``, ``seed`` and ``config``; ``index`` from 0.

    A configuration that the task refuses is ``(False, the refusal)``. Raises what the task itself raises.
    """
    asked = json.loads(request)
    try:
        dataset = _dataset(
            asked["task"], json.dumps({**asked["config"], "seed": asked["seed"], "size": int(index) + 1})
        )
    except (AssertionError, TypeError, ValueError) as error:
        return False, str(error) or type(error).__name__
    entry = dataset[int(index)]
    return True, json.dumps({**entry, "config": asked["config"]} if asked["config"] else entry)


def score(gold: str, answer: str, /) -> float:
    """The scorer's value in [0, 1]. ``gold``: an entry as JSON; its ``config`` is what was set besides seed and size."""
    entry: dict[str, Any] = json.loads(gold)
    task = entry["metadata"]["source_dataset"]
    dataset = _dataset(task, json.dumps(entry.get("config", {})))
    if task in _LISTS:
        vars(sys.modules[type(dataset).__module__])["eval"] = ast.literal_eval
    value = float(dataset.score_answer(answer, entry))
    # Sums of partial credit are rounded, and may end beyond 1.
    return 1.0 if value == 1.0 else min(max(value, 0.0), _BELOW_ONE)


@lru_cache(maxsize=32)
def _dataset(task: str, config: str) -> Any:
    return create_dataset(task, **json.loads(config))
