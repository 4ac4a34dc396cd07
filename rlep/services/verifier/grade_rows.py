"""Grading a JSON-lines file row by row: ``{"gold": …, "response": …}`` in, the same rows with their verdicts out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from rlep.core.thinking import opened
from rlep.core.types import Asked, Status
from rlep.services.verifier.base import BaseVerifier, Pair

_BATCH = 256
LONGEST_LINE = 1 << 24
"""Characters of a row; what is longer is not graded."""


@dataclass(frozen=True, slots=True)
class GradedRow:
    """One row of the output."""

    text: str
    """The row as JSON."""
    line: int
    """Its line in the input, from 1."""
    status: Status | None = None
    """None where it has no verdict."""
    error: str = ""
    """Why it has no verdict; empty where it has one."""
    failure: str = ""
    """Why it is ``crashed``."""


def grade_rows(lines: Iterable[str], verifier: BaseVerifier, *, batch: int = _BATCH) -> Iterator[GradedRow]:
    """One row per non-empty line, in order, with ``status``, ``extracted``, ``path``, ``seconds`` added.

    A verdict with a score also adds ``score`` and ``parts``, one that has a reason ``reason``.

    A reward function may ask for the row's columns. Where ``prompt`` is the text that the model was shown, and ends by opening
    the thinking (``<think>``), so does what is graded.
    A row is truncated where ``truncated`` is true or ``finish_reason`` is ``length``. A malformed row comes back with
    ``error`` (and as ``line``, if it is no object) and does not stop the others. ``batch`` rows are in work at once.
    """
    rows = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    while chunk := list(itertools.islice(rows, batch)):
        read = [_read(line, verifier) for _, line in chunk]
        good = [row for row in read if "error" not in row[1]]
        verdicts = iter(verifier.grade_pairs([row[0] for row in good]))
        for (number, _), (_, row) in zip(chunk, read, strict=True):
            status, failure = None, ""
            if "error" not in row:
                verdict = next(verdicts)
                status = verdict.status
                row |= {
                    "status": status,
                    "extracted": verdict.extracted,
                    "path": verdict.path,
                    "seconds": round(verdict.seconds, 6),
                }
                if verdict.score is not None:
                    row |= {"score": verdict.score, "parts": dict(verdict.parts)}
                if verdict.reason:
                    row["reason"] = verdict.reason
                failure = verdict.reason if status == "crashed" else ""
            yield GradedRow(json.dumps(row), number, status, str(row.get("error", "")), failure)


def bounded_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, of one that is too long so much that ``grade_rows`` sees it is."""
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        while len(line) > LONGEST_LINE and not line.endswith("\n"):
            line = file.readline(LONGEST_LINE + 1)


def _read(line: str, verifier: BaseVerifier) -> tuple[Pair, dict[str, Any]]:
    """``((gold, response, truncated), row)``; a malformed row, or one that the verifier cannot grade, says so under ``error``."""
    nothing = Pair("", "", False)
    if len(line) > LONGEST_LINE:
        return nothing, {"line": line[:200], "error": f"longer than {LONGEST_LINE} characters"}
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return nothing, {"line": line.rstrip("\n"), "error": f"not JSON: {error}"}
    if not isinstance(row, dict):
        return nothing, {"line": line.rstrip("\n"), "error": f"not a JSON object but {type(row).__name__}"}
    if {"status", "score", "parts"} <= row.keys():  # together they are of an earlier grading; alone, the user's own
        del row["score"], row["parts"]
    if "status" in row:
        row.pop("reason", None)
    for old in ("error", "status", "extracted", "path", "seconds"):  # of an earlier grading
        row.pop(old, None)
    gold, response = row.get("gold"), row.get("response")
    if isinstance(gold, (int, float)) and not isinstance(gold, bool):
        gold = json.dumps(gold)
    if not isinstance(gold, str) or not isinstance(response, str):
        wrong = [key for key, value in (("gold", gold), ("response", response)) if not isinstance(value, str)]
        return nothing, {**row, "error": f"no text under {' and '.join(wrong)}"}
    if fault := verifier.reference_fault(gold):
        return nothing, {**row, "error": fault}
    cut = row.get("truncated") is True or row.get("finish_reason") == "length"
    prompt = row.get("prompt")
    prompt = prompt if isinstance(prompt, str) else ""
    asked = Asked(prompt, json.dumps(row)) if verifier.asks else Asked(prompt)
    return Pair(gold, opened(prompt) + response, cut, asked), row
