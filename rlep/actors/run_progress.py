"""Progress of a run and its roles, as other processes and its user see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlep.metrics.catalogue import MetricValue

ElasticRole = Literal["generators", "verifiers", "environments"]
"""Roles whose number of actors can be changed while the run goes on."""


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
    replay: Mapping[str, MetricValue] = field(default_factory=dict)
    """Its ``replay/…`` and ``live/…`` metrics."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """A complete step."""

    run: str
    done: int
    """Complete steps of the run: the first step's report says 1."""
    steps: int
    seconds: float
    """Seconds the step took."""
    left_s: float
    """Time to the last step, at this process's mean time from step to step, evaluations and checkpoints included."""
    metrics: Mapping[str, MetricValue]
