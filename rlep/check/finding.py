"""One result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlep.core.errors import RlepError

Level = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``rlep check``."""

    what: str
    level: Level
    detail: str
    """The numbers, or the reason."""
    remedy: str = ""
    messages: str = ""
    """Standard output and error of a part that failed."""


class CheckSkipped(RlepError):
    """A check that cannot be made here; the message is the reason."""
