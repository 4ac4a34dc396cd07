"""Counts, sizes and names in sentences."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3
"""Of several names, those that a sentence has."""


def counted(count: int, noun: str) -> str:
    """The count and its noun: ``1 restart``, ``2,000 restarts``, ``0 queries``."""
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {many}"


def sized(count: int) -> str:
    """Bytes as text: ``0.1 KiB``, ``3.0 MiB``, ``28.4 GiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.1f} KiB"


def named(names: Sequence[str]) -> str:
    """The first of several names: ``a, b, c and 4 more``."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
