"""Report of an import: of records, or of texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

EXAMPLES = 20


@dataclass(slots=True)
class Imported:
    """Counts of an import's records or responses."""

    inserted: int = 0
    duplicates: int = 0
    """In the pool before."""
    quarantined: int = 0
    """Set aside in the pool, as they were where they come from, and not before."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → how many."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    """(content id or place, reason) of the first few refused."""
    sealed: str | None = None
    """Digest of the pool where the import sealed it."""

    def refuse(self, name: str, reason: str, *, group: str = "") -> None:
        """Count one; ``group`` is the reason without what is particular to this one."""
        self.refused[group or reason] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append((name, reason))
