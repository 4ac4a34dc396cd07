"""Progress of long work: who does it moves a bar, who shows it decides how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

Advance = Callable[[int], None]
"""Moves a bar on by a number of units."""

StartPhase = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Shows a bar until its end: name, total, unit."""
