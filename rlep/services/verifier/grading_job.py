"""Value that a verifier's process gets: one comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradingJob:
    """One comparison for a worker."""

    reference: str
    answer: str
    prompt: str = ""
    """The question as text."""
    columns: str = ""
    """The row of the question, a JSON object, where a function may ask for its columns; else empty."""
