"""The list of runs, and the page of a run: a summary first, then charts, evaluations, steps and events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from rlep.core.jsonl import LONGEST_LINE
from rlep.metrics.catalogue import EVENTS
from rlep.view import rollouts
from rlep.view.charts import STEP, Axis, ChartLook, Curve, Drawing, line_chart
from rlep.view.record import MOST_SOURCES, PHASES, EvaluationPoint, by_source, headline_source, read_evaluations
from rlep.view.run_charts import evaluation_curve, group_charts, metric_chart, replay_share, seconds_chart
from rlep.view.run_files import RunPlace, StepLine, newest, number_of, read_json, read_tail
from rlep.view.state import RunLine, flat, summaries_of, summary_of
from rlep.view.steps import StepTable, read_steps
from rlep.view.templating import rendered, shown
from rlep.view.words import SEVERITY, duration, is_own, number

A_PAGE = 100
"""Rows of a table that is turned over."""
EVENTS_SHOWN = 200
MOST_EVALUATIONS = 5000
"""Newest rows of the table."""
RECENT = 20
"""Newest steps over which means are taken."""
MOST_OWN = 24
"""Of the user's metrics that are drawn unasked."""
STATES = ("running", "silent", "dead", "failed", "interrupted", "finished")
SEVERITIES = ("error", "warning", "information")
SECTIONS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Learning": (
        ("Correct responses", ("rollout/accuracy", "selection/accuracy")),
        ("Reward", ("rollout/reward", "replay/reward")),
        ("Length in tokens", ("rollout/length_mean", "replay/length_mean")),
        ("Entropy", ("update/entropy/fresh", "update/entropy/replay")),
    ),
    "Replay": (
        ("Groups with a signal", ("group/informative", "group/solved_by_replay")),
        ("Tokens in the loss", ("loss/tokens/fresh", "loss/tokens/replay")),
        ("Age of replays", ("replay/age",)),
        ("Log-probs", ("logprob/fresh", "logprob/replay", "logprob/replay_behaviour")),
    ),
    "Update": (
        ("Importance ratio", ("ratio/mean/fresh", "ratio/mean/replay")),
        ("KL to the step's policy", ("update/approx_kl/fresh", "update/approx_kl/replay")),
        ("Gradient norm", ("update/grad_norm",)),
    ),
}
"""Section → title and metrics of each chart."""
FOLDED = ("Update", "Time")
"""Sections that a reader opens."""
COLUMNS = (
    "rollout/accuracy", "rollout/reward", "rollout/length_mean", "group/informative", "group/solved_by_replay",
    "replay/age", "loss/tokens/fresh", "loss/tokens/replay", "update/entropy/fresh", "update/grad_norm", "time/step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Order, metrics and range in the address of a run's page."""

    page: int = 0
    sort: str = "step"
    down: bool = True
    metrics: tuple[str, ...] = ()
    """Metrics that are drawn first."""
    events: str = "all"
    """A severity, or all."""
    unfolded: bool = False
    """True opens the table of steps."""
    look: ChartLook = field(default_factory=ChartLook)


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event as the table shows it."""

    time: float
    severity: str
    name: str
    help: str
    step: object
    rest: str


@dataclass(frozen=True, slots=True)
class Now:
    """The cards at the top: a large text and small lines each."""

    accuracy: str
    accuracy_lines: Sequence[str]
    fresh: str
    fresh_lines: Sequence[str]
    progress: str
    progress_lines: Sequence[str]
    replay: str
    replay_lines: Sequence[str]


def overview(runs: Sequence[RunPlace], q: str = "", state: str = "") -> str:
    """The list of runs, the last changed first; of those with ``q`` in name or command, in a state."""
    listed = newest(runs)
    found, notes = summaries_of(listed)
    if len(listed) < len(runs):
        notes.insert(
            0, f"{len(runs)} runs are here; listed are the {len(listed)} that changed last. Others open at /runs/NAME"
        )
    lines = sorted(found, key=lambda line: line.changed, reverse=True)
    chosen = [
        line
        for line in lines
        if q.lower() in f"{line.name} {line.label} {line.command}".lower() and state in ("", line.state)
    ]
    return rendered("overview.html", runs=chosen, total=len(runs), q=q, state=state, states=STATES, notes=notes)


def run(place: RunPlace, query: RunQuery, seen: str) -> str:
    """Summary, charts, evaluations, steps and events of a run; ``seen`` is the ``mark_of`` it before they were read."""
    table, notes = read_steps(place)
    events = read_tail(place, "events.jsonl", LONGEST_LINE)
    evaluations, damaged = read_evaluations(place)
    config, missing = read_json(place, "config.json")
    written = set(rollouts.steps_with(place, "rollouts"))
    line = summary_of(place)
    happened = [_event(event) for event in reversed(events.lines)]
    order = _order(table, query)
    first = query.page * A_PAGE
    names = sorted(name for name in [*table.columns] if "[" not in name)
    return rendered(
        "run.html",
        run=place.name,
        seen=seen,
        summary=line,
        now=now_of(line, table, evaluations),
        look=query.look,
        sections=_sections(table, evaluations, query),
        folded=FOLDED,
        names=names,
        chosen=[name for name in query.metrics if name in table.columns],
        columns=[name for name in COLUMNS if name in table.columns] + own_names(table)[:8],
        lines=[table.line(at) for at in order[first : first + A_PAGE]],
        count=len(table),
        page=query.page,
        sort=query.sort,
        down=query.down,
        unfolded=query.unfolded,
        last=max(0, (len(table) - 1) // A_PAGE),
        severities={"all": len(happened)}
        | {severity: sum(e.severity == severity for e in happened) for severity in SEVERITIES},
        severity=query.events,
        events=[event for event in happened if query.events in ("all", event.severity)][:EVENTS_SHOWN],
        evaluations=evaluations[: -MOST_EVALUATIONS - 1 : -1],
        ks=sorted({k for row in evaluations for k in row.passes})[:8],
        written=written,
        sampled=set(rollouts.steps_with(place, "samples")),
        config=flat(config),
        notes=[
            *notes,
            *events.notes,
            *(note for note in damaged if not note.endswith(" is missing")),
            *missing,
            *([] if written else ["rollouts/ has no files: there are no pages of steps"]),
        ],
    )


def now_of(line: RunLine, table: StepTable, evaluations: Sequence[EvaluationPoint]) -> Now:
    """The state of a run in four numbers."""
    recent = table.lines(len(table) - RECENT, len(table))
    accuracy, lines = _held_out(evaluations)
    left = time_left(line, recent)
    of = f" of {line.planned}" if line.planned is not None else ""
    rescued, signal = _mean(recent, "group/solved_by_replay"), _mean(recent, "group/informative")
    share, age = replay_share(recent), _mean(recent, "replay/age")
    replays = any(step.numbers.get("replay/trajectories") for step in recent)
    window = f"mean of the newest {len(recent)} steps" if len(recent) > 1 else ""
    return Now(
        accuracy,
        lines,
        number(line.accuracy, "share"),
        [f"{number(_mean(recent, 'rollout/accuracy'), 'share')}, {window}" if window else ""],
        f"{line.steps}{of} steps",
        [
            f"about {duration(left)} left" if left is not None else "",
            f"{duration(_typical(recent))} a step" if recent and _typical(recent) else "",
        ],
        number(rescued, "share") if replays else "no replays",
        [
            f"of the groups rescued: no fresh success, a correct replay ({window or 'newest step'})",
            f"{number(signal, 'share')} of the groups have a learning signal" if signal is not None else "",
            f"{number(share, 'share')} of the advantage mass is the replays'" if share is not None else "",
            f"{number(age)} steps old on average" if age is not None else "",
        ]
        if replays
        else ["nothing was drawn from a pool in these steps"],
    )


def time_left(line: RunLine, recent: Sequence[StepLine]) -> float | None:
    """Seconds until the planned end by the newest steps' clock, with evaluations; None where that is not known."""
    if line.planned is None or line.state not in ("running", "silent") or len(recent) < 2:
        return None
    taken = recent[-1].wall_s - recent[0].wall_s
    a_step = taken / (len(recent) - 1) if taken > 0 else _typical(recent)
    return max(0, line.planned - line.steps) * a_step if a_step else None


def _typical(recent: Sequence[StepLine]) -> float:
    return median([step.numbers["time/step"] for step in recent if "time/step" in step.numbers] or [0.0])


def _mean(recent: Sequence[StepLine], name: str) -> float | None:
    values = [step.numbers[name] for step in recent if name in step.numbers]
    return fmean(values) if values else None


def _held_out(evaluations: Sequence[EvaluationPoint]) -> tuple[str, list[str]]:
    """The newest accuracy, and its interval, the best one and pass@k in lines."""
    source = headline_source(evaluations)
    rows = [row for row in evaluations if row.data_source == source]
    if not rows:
        return "–", ["no evaluation yet"]
    last, best = rows[-1], max(rows, key=lambda row: row.avg)
    k = max(last.passes, default=1)
    return number(last.avg, "share"), [
        f"step {last.step}, {shown(source)}{_interval(last)}",
        f"best {number(best.avg, 'share')} at step {best.step}{_interval(best)}",
        "in brackets: 95 % interval over questions" if last.low is not None else "",
        f"pass@{k} {number(last.passes[k], 'share')}" if k > 1 else "",
    ]


def _interval(point: EvaluationPoint) -> str:
    if point.low is None or point.high is None:
        return ""
    words = f"({number(point.low, 'share')} to {number(point.high, 'share')})"
    return " " + words.replace(" ", "\u00a0")  # in one line


def _sections(
    table: StepTable, evaluations: Sequence[EvaluationPoint], query: RunQuery
) -> list[tuple[str, list[Drawing]]]:
    """The charts by section; the chosen metrics first, the user's own after those of rlep."""
    look = query.look
    chosen = [metric_chart(name, table, [name], look) for name in query.metrics if name in table.columns]
    own = [metric_chart(name, table, [name], look) for name in own_names(table)[:MOST_OWN]]
    found: dict[str, list[Drawing | None]] = {
        "Chosen": chosen,
        "Held-out questions": held_out_charts(evaluations, table, look),
    }
    for section, charts in SECTIONS.items():
        found[section] = [metric_chart(title, table, names, look) for title, names in charts]
    found["Replay"] += group_charts(table)
    found["Your own metrics"] = own
    found["Time"] = [
        seconds_chart("Seconds of a step", table),
        metric_chart("Tokens per second", table, ("rollout/tokens_per_second", "update/tokens_per_second"), look),
        metric_chart("Stages", table, [f"time/{phase}" for phase in PHASES], look),
    ]
    drawn = {section: [chart for chart in several if chart is not None] for section, several in found.items()}
    return [(section, several) for section, several in drawn.items() if several]


def held_out_charts(evaluations: Sequence[EvaluationPoint], table: StepTable, look: ChartLook) -> list[Drawing | None]:
    """Accuracy with its interval for each data source, and pass@k of the one that stands for all."""
    curves = [evaluation_curve(source, rows, table) for source, rows in by_source(evaluations).items()]
    headline = headline_source(evaluations)
    rows = [row for row in evaluations if row.data_source == headline]
    ks = sorted({k for row in rows for k in row.passes})[:MOST_SOURCES]
    several = [Curve(f"pass@{k}", [(row.step, row.passes[k]) for row in rows if k in row.passes]) for k in ks]
    return [
        line_chart(
            "Evaluations: accuracy", curves, STEP, Axis("correct samples, mean over questions", "share"), look=look,
            caption="The band is the 95 % interval over questions.",
        ),
        line_chart(
            f"Evaluations: pass@k of {headline}", several, STEP, Axis("questions solved by one of k samples", "share"), look=look
        )
        if len(ks) > 1
        else None,
    ]  # fmt: skip


def own_names(table: StepTable) -> list[str]:
    """The user's metrics, and the parts of rewards and scores."""
    return sorted(name for name in [*table.columns] if "[" not in name and is_own(name))


def _order(table: StepTable, query: RunQuery) -> list[int]:
    """Places of the steps in the order that was asked for; steps without the metric last."""
    places = range(len(table))
    column = table.columns.get(query.sort)
    if column is None:
        return list(reversed(places) if query.down else places)
    values = list(column)[: len(table)]
    sign = -1 if query.down else 1
    return sorted(places, key=lambda at: (math.isnan(values[at]), 0.0 if math.isnan(values[at]) else sign * values[at]))


def _event(line: Mapping[str, Any]) -> EventLine:
    name = str(line.get("event"))
    rest = ", ".join(_pairs(line))
    severity = SEVERITY.get(name, "information")
    step = line.get("step")
    at = number_of(line.get("time")) or 0.0
    return EventLine(at, severity, name, EVENTS.get(name, ""), "" if step is None else step, rest[:1000])


def _pairs(line: Mapping[str, Any]) -> Iterator[str]:
    for key, value in line.items():
        if key not in ("time", "event", "step") and value is not None:
            yield f"{key.replace('_', ' ')}: {number(value) if isinstance(value, float) else value}"
