"""A run's status as ``rlep status`` and ``rlep top`` show it, and the tables of ``rlep timeline``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from rlep.cli.tables import table_of
from rlep.core.plural import counted
from rlep.metrics.spans import StepBreakdown

if TYPE_CHECKING:
    from rlep.actors.control import RunStatus
    from rlep.actors.run_progress import RunProgress


def view(status: RunStatus, *, step: bool = False) -> Group:
    """Lines and a table of all actors, with ``step`` also of the last whole step."""
    above = [heading(status), *([phases(status.progress)] if step or status.progress.phases else [])]
    above += last_step(status) if step else []
    below = [*backlog(status), *errors(status)]
    return Group(*map(Text, above), table_of(actor_rows(status)), *map(Text, below))


def heading(status: RunStatus) -> str:
    """Title of a run's status: its name, its progress, and the newest policy version served."""
    versions = [actor.version for role in status.roles for actor in role.actors if actor.version is not None]
    progress = status.progress
    steps = "" if progress.done is None else f"{progress.done} of {counted(progress.steps or 0, 'step')} done, "
    return f"{status.run}: {steps}policy version {max(versions, default='none yet')}"


def phases(progress: RunProgress) -> str:
    """The phases in progress."""
    parts = [f"{p.name} {p.done}{'' if p.total is None else f' of {p.total}'} {p.unit}" for p in progress.phases]
    return "now: " + (", ".join(parts) or "between two phases")


def actor_rows(status: RunStatus) -> list[dict[str, str]]:
    """A row for each actor."""
    return [
        {
            "actor": actor.name,
            "state": actor.state,
            "version": "" if actor.version is None else str(actor.version),
            "in flight": str(actor.in_flight),
            "tokens/s": "" if actor.tokens_per_second is None else f"{actor.tokens_per_second:,.0f}",
            "KV cache": "" if actor.kv_use is None else f"{100 * actor.kv_use:.0f} %",
            "preempted": "" if actor.preempted is None else str(actor.preempted),
            "restarts": str(actor.restarts),
        }
        for role in status.roles
        for actor in role.actors
    ]


def backlog(status: RunStatus) -> list[str]:
    """Work that waits for an actor."""
    lines = []
    for role in status.roles:
        if role.role == "generator":
            again = f"{role.reissued.retried} re-dispatched, {counted(role.reissued.dropped, 'completion')} dropped"
            lines.append(f"requests: {role.backlog} waiting for a generator, {again}")
        elif role.role == "verifier":
            lines.append(f"verdicts: {counted(role.backlog, 'call')} waiting for a verifier")
        elif role.role == "environment":
            lines.append(f"episodes: {role.backlog} waiting for an environment")
    return lines


def errors(status: RunStatus) -> list[str]:
    """The last error of each actor that has one."""
    found = [(actor.name, actor.error) for role in status.roles for actor in role.actors if actor.error]
    return [f"{name}: {error.splitlines()[-1]}" for name, error in found]


def last_step(status: RunStatus) -> list[str]:
    """The last whole step: its seconds by phase, its critical path, and who was idle."""
    lines = []
    seconds, breakdown = status.progress.seconds, status.last_step
    if "step" in seconds:
        parts = [
            f"{name} {s:.2f} s" for name, s in sorted(seconds.items(), key=lambda part: -part[1]) if name != "step"
        ]
        lines.append(f"last step: {seconds['step']:.2f} s; {', '.join(parts)}")
    if (found := status.progress.replay).get("replay/trajectories"):
        age = f", mean age {found['replay/age']:.1f} steps" if "replay/age" in found else ""
        lines.append(f"replays: {found['replay/trajectories']} in the step{age}")
    if "live/responses" in found:
        retired = f", {found['live/retired']} retired" if "live/retired" in found else ""  # exgrpo alone retires
        lines.append(
            f"live replay: {found['live/responses']} responses, {found['live/questions']} questions with enough of them{retired}"
        )
    if breakdown is not None:
        path = [f"{what} {s:.2f} s ({_share(s, breakdown)})" for what, s in breakdown.path_seconds().items()]
        lines.append(f"critical path: {', '.join(path)}")
        lines.append("idle: " + ", ".join(f"{role} {100 * share:.0f} %" for role, share in breakdown.idle.items()))
    return lines


def path_rows(breakdown: StepBreakdown) -> list[dict[str, str]]:
    """The critical path of a step as a table: links of one kind together."""
    counts: dict[str, int] = {}
    for link in breakdown.path:
        counts[link.what] = counts.get(link.what, 0) + 1
    return [
        {
            f"step {breakdown.number}": what,
            "spans": str(counts.get(what, "")),
            "seconds": f"{s:.3f}",
            "share": _share(s, breakdown),
        }
        for what, s in breakdown.path_seconds().items()
    ]


def share_rows(shares: Mapping[str, float], name: str, title: str) -> list[dict[str, str]]:
    """Shares as a table."""
    return [{name: key, title: f"{100 * share:.0f} %"} for key, share in shares.items()]


def _share(seconds: float, breakdown: StepBreakdown) -> str:
    return f"{100 * seconds / breakdown.seconds:.0f} %"
