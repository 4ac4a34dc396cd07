"""Observer of a run's steps: their spans, the progress, and the actors at work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlep.actors.replicas import RoleStatus
from rlep.actors.run_progress import Phase, RunProgress, StepReport
from rlep.actors.timeline import Timeline
from rlep.driver.context import Step
from rlep.driver.step import StepOutcome
from rlep.metrics.catalogue import MetricValue

ALIVE = ("serving", "leaving")


@dataclass(slots=True)
class Watch:
    """Observer of a run's steps."""

    steps: int | None
    """Steps of the whole run; None where the run has none."""
    phases: Callable[[], tuple[Phase, ...]]
    timeline: Timeline = field(default_factory=Timeline)
    roles: Callable[[], Sequence[RoleStatus]] = tuple
    done: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    replay: Mapping[str, MetricValue] = field(default_factory=dict)
    restarts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Role → actor → its restarts, also of removed ones."""
    shown: Callable[[StepReport], None] = lambda _: None
    """Called after each complete step."""
    clock: Callable[[], float] = time.monotonic
    begun: float | None = None
    """Time at which this process began its first step."""
    measure: Callable[[], Mapping[str, MetricValue]] = dict
    """Called after each complete step for metrics of the actors."""
    constant: Mapping[str, MetricValue] = field(default_factory=dict)
    """Metrics that are the same in every step."""
    step_begun: float = 0.0
    """Time at which the step in progress began, by the timeline's clock."""
    complete: int = 0
    """Steps of this process, repeated ones too."""

    def progress(self) -> RunProgress:
        """Return the progress of the run."""
        return RunProgress(self.done, self.steps, self.phases(), self.seconds, self.replay)

    async def begin_step(self, step: Step) -> None:
        """Note when a step begins."""
        self.done = step.number
        self.begun = self.clock() if self.begun is None else self.begun
        self.step_begun = self.timeline.now()

    async def end_step(self, outcome: StepOutcome, metrics: Mapping[str, MetricValue]) -> Mapping[str, MetricValue]:
        """Record the span of a complete step and show it; returns the ``actors/…`` metrics and the constant ones."""
        step = outcome.step
        self.timeline.add_step(step.number, self.step_begun)
        self.done = step.number + 1
        self.seconds = dict(step.clock.seconds)
        kinds = ("replay/", "live/")
        self.replay = {name: value for name, value in metrics.items() if name.startswith(kinds)}
        self.complete += 1
        self.shown(self.report(step, metrics))
        return dict(self.constant) | dict(self.measure()) | self.actors(self.roles())

    def report(self, step: Step, metrics: Mapping[str, MetricValue]) -> StepReport:
        """Return the report of a step that has just ended, for the user."""
        config, done = step.run.config.run, step.number + 1
        elapsed = 0.0 if self.begun is None else self.clock() - self.begun
        left_s = elapsed / max(self.complete, 1) * (config.steps - done)
        return StepReport(config.name, done, config.steps, step.clock.seconds.get("step", 0.0), left_s, metrics)

    def actors(self, roles: Sequence[RoleStatus]) -> dict[str, MetricValue]:
        """Count actors alive, and restarts so far, by role."""
        alive = dict.fromkeys((role.role for role in roles), 0)
        for role in roles:
            alive[role.role] += sum(actor.state in ALIVE for actor in role.actors)
            self.restarts.setdefault(role.role, {}).update({actor.name: actor.restarts for actor in role.actors})
        values: dict[str, MetricValue] = {f"actors/alive/{role}": count for role, count in alive.items()}
        return values | {f"actors/restarts/{role}": sum(self.restarts[role].values()) for role in alive}
