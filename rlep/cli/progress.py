"""Progress of a command: bars on a terminal; elsewhere a line for each note and each step, or JSON for scripts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from rlep.actors.run_progress import Phase, StepReport
from rlep.cli.shell import say_stopping
from rlep.cli.terminal import Terminal
from rlep.core.plural import counted
from rlep.core.progress import Advance

SHOWN = {
    "reward": "rollout/reward",
    "accuracy": "rollout/accuracy",
    "length": "rollout/length_mean",
    "loss": "loss/sft",
    "replays": "replay/trajectories",
}
"""Name in a step's line → metric; a step's line has those that the step has."""
SILENT_S = 15.0
"""Seconds without a line after which a phase that has moved reports its progress, where there is no bar."""


class StepBars(Progress):
    """Bars below the last step's line."""

    last = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The line, where there has been a step, and the bars."""
        if self.last:
            yield Text(self.last)
        yield self.make_tasks_table(self.tasks)


class TerminalProgress:
    """``CommandProgress`` on standard error; results, and steps as JSON, on standard output."""

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        """``quiet``: show the result only; ``as_json``: write an object for each step, and everything else to standard error."""
        self.console = Terminal(stderr=True, soft_wrap=True)
        self.results = Terminal(stderr=as_json, soft_wrap=True)
        self._quiet, self._json = quiet, as_json
        self._steps: TaskID | None = None
        self._said = time.monotonic()
        self._progress = StepBars(
            SpinnerColumn(),
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            redirect_stdout=False,
            disable=quiet or not sys.stderr.isatty(),
        )

    def __enter__(self) -> TerminalProgress:
        if self._quiet:
            os.environ["HF_HUB_VERBOSITY"] = "error"  # read when the first download begins
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """A bar that goes when the block ends, or a line now and then; without a total it only counts."""
        task = self._progress.add_task(name, total=total, unit=unit)

        def advance(by: int = 1) -> None:
            self._progress.advance(task, by)
            if self._progress.disable and time.monotonic() - self._said >= SILENT_S:
                done = self._progress.tasks[self._progress.task_ids.index(task)].completed
                if done != total:
                    self.note(f"{name}: {done:g}{'' if total is None else f'/{total}'} {unit}")

        try:
            yield advance
        finally:
            self._progress.remove_task(task)

    def phases(self) -> tuple[Phase, ...]:
        """The bars of phases that are there now."""
        return tuple(
            Phase(task.description, int(task.completed), None if task.total is None else int(task.total), unit)
            for task in self._progress.tasks
            if task.id != self._steps and isinstance(unit := task.fields["unit"], str)
        )

    def step(self, report: StepReport) -> None:
        """A bar of the run's steps on a terminal, a line elsewhere, or an object on standard output."""
        if self._json:
            typer.echo(json.dumps(step_values(report)))
            return
        number, text = f"step {report.done - 1}", step_text(report)
        line = f"{number} ({report.done}/{report.steps}): {text}"
        ended = report.done == report.steps
        if self._progress.disable or ended:
            self.note(line)
        elif self._steps is None:
            self._steps = self._progress.add_task("steps", total=report.steps, unit="")
        self._progress.last = "" if ended else f"{number}: {text}"  # the bar counts
        if self._steps is not None:
            self._progress.update(self._steps, completed=report.done)
            if ended:
                self._progress.remove_task(self._steps)
                self._steps = None

    def stopping(self) -> None:
        """The command was told to stop."""
        if not self._quiet:
            say_stopping()

    def note(self, text: str) -> None:
        """One line of text on standard error."""
        self._said = time.monotonic()
        if not self._quiet:
            self.console.print(text)

    def say(self, text: str, *, bold: bool = False) -> None:
        """One line of text where the results go."""
        if not self._quiet:
            self.results.print(text, style="bold" if bold else None)

    def result(self, text: str) -> None:
        """The last line of a command."""
        self.results.print(text)


def step_values(report: StepReport) -> dict[str, object]:
    """A step as scripts read it, by its number in ``metrics.jsonl``; times in seconds."""
    found = {name: report.metrics[metric] for name, metric in SHOWN.items() if metric in report.metrics}
    return {
        "run": report.run,
        "step": report.done - 1,
        "done": report.done,
        "steps": report.steps,
        **found,
        "seconds": round(report.seconds, 3),
        "left_s": round(report.left_s, 1),
    }


def step_text(report: StepReport) -> str:
    """A step as people read it."""
    forms = {"reward": "reward {:.3f}", "accuracy": "accuracy {:.1%}", "length": "length {:.0f}", "loss": "loss {:.4f}"}
    values = step_values(report)
    parts = [form.format(values[name]) for name, form in forms.items() if name in values]
    if isinstance(replays := values.get("replays"), int) and replays:
        parts.append(counted(replays, "replay"))
    return ", ".join([*parts, f"{report.seconds:.2f} s/step", f"{as_clock(report.left_s)} left"])


def as_clock(seconds: float) -> str:
    """``0:09``, ``1:04`` minutes, ``2:05:00`` hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
