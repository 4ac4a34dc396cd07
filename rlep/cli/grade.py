"""``rlep grade``: rows of any origin through the verifier."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from rlep.cli.progress import Bars
from rlep.errors import DataError
from rlep.services.verifier.grader import build_verifier
from rlep.services.verifier.rows import grade_rows


def grade_file(file: Path, profile: str, workers: int, out: Path | None) -> None:
    """Grade a JSONL file; a malformed row is reported in its place. DataError where the file cannot be read."""
    try:
        with file.open("rb") as rows:
            total = sum(1 for _ in rows)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    with ExitStack() as stack:
        lines = stack.enter_context(file.open(encoding="utf-8", errors="surrogateescape"))
        written = sys.stdout if out is None else stack.enter_context(out.open("w", encoding="utf-8"))
        verifier = stack.enter_context(build_verifier(profile, workers=workers))
        bars = stack.enter_context(Bars())
        with bars.phase("grade", total, "rows") as advance:
            for row in grade_rows(lines, verifier):
                written.write(row + "\n")
                advance()
        counts = {name: count for name, count in verifier.stats().by_status.items() if count}
        bars.note(f"{sum(counts.values())} graded: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
