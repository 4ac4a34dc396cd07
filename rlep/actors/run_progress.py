"""Progress of a run, as other processes see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the work in progress."""

    name: str
    done: int
    total: int | None
    unit: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run; without steps it is a collection."""

    done: int | None = None
    """Whole steps; None before this process has begun one."""
    steps: int | None = None
    phases: tuple[Phase, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The last step's ``time/…`` metrics."""
