"""Charts of a run's numbers, for its page, for comparisons and for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlep.view.charts import STEP, Axis, ChartLook, Curve, Drawing, Key, line_chart, ramp, stack_chart
from rlep.view.record import PHASES, EvaluationPoint, compute_at
from rlep.view.run_files import StepLine
from rlep.view.steps import StepTable
from rlep.view.words import label_of, unit_of

AXES: Mapping[str, str] = {
    "steps": "steps",
    "time": "minutes of work",
    "compute": "million tokens: generated + scored + 3 × trained",
}
"""What runs are compared over → its words."""


def metric_chart(title: str, table: StepTable, names: Sequence[str], look: ChartLook) -> Drawing | None:
    """Metrics over the steps; the title of a single metric is its label."""
    known = [name for name in names if name in table.columns]
    if not known:
        return None
    heading = label_of(title) if title in table.columns else title
    curves = [Curve(label_of(name), table.points(name)) for name in known]
    return line_chart(heading, curves, STEP, axis_of(known[0]), look=look)


def axis_of(name: str) -> Axis:
    """The axis on which a metric's values stand."""
    unit = unit_of(name)
    return Axis({"s": "seconds", "": "value"}.get(unit, unit), unit)


def evaluation_curve(label: str, rows: Sequence[EvaluationPoint], table: StepTable, over: str = "steps") -> Curve:
    """Accuracy with its interval over one of ``AXES``, of the evaluations whose place on it the run recorded."""
    placed = [(at, row) for row in rows if (at := _place(row, table, over)) is not None]
    placed.sort(key=lambda point: point[0])
    band = [(at, row.low, row.high) for at, row in placed if row.low is not None and row.high is not None]
    return Curve(label, [(at, row.avg) for at, row in placed], band)


def _place(row: EvaluationPoint, table: StepTable, over: str) -> float | None:
    if over == "compute":
        return None if (compute := compute_at(table, row.step)) is None else compute / 1e6
    return row.wall_s / 60 if over == "time" else float(row.step)


def seconds_chart(title: str, table: StepTable) -> Drawing | None:
    """Seconds of a step by stage, and what they leave of it."""
    at = [place for place, value in enumerate(table.columns.get("time/step", ())) if value == value]  # noqa: PLR0124 -- not NaN
    steps = [float(table.steps[place]) for place in at]
    if not steps:
        return None
    parts = {name: _filled(table, f"time/{name}", at) for name in PHASES}
    whole = _filled(table, "time/step", at)
    rest = [max(0.0, total - sum(part[place] for part in parts.values())) for place, total in enumerate(whole)]
    bands = [(Key(name, f"p-{name}"), values) for name, values in (*parts.items(), ("other", rest))]
    return stack_chart(title, steps, bands, Axis("time of a step", "s"))


def group_charts(table: StepTable, label: str = "") -> list[Drawing | None]:
    """Charts of the groups' composition: correct fresh responses, and replays, of each group."""
    of = f" ({label})" if label else ""
    words = (
        "The share of groups with so many correct fresh responses. All wrong or all right teaches nothing by itself; "
        "a replay gives an all-wrong group something to learn from."
    )
    return [
        shares_chart(f"Groups by correct fresh responses{of}", table, "group/fresh_successes", words),
        shares_chart(f"Groups by replays{of}", table, "group/replays", "") if _replayed(table) else None,
    ]


def shares_chart(title: str, table: StepTable, name: str, caption: str) -> Drawing | None:
    """A list of counts over the steps, as shares of its sum."""
    columns = table.entries(name)
    at = [place for place in range(len(table)) if _sum(table, columns, place) > 0]
    if not at:
        return None
    sums = [_sum(table, columns, place) for place in at]
    rows = [
        [value / total for value, total in zip(_filled(table, column, at), sums, strict=True)] for column in columns
    ]
    bands = [
        (Key(str(number), fill=colour), row)
        for number, (colour, row) in enumerate(zip(ramp(len(columns)), rows, strict=True))
    ]
    steps = [float(table.steps[place]) for place in at]
    return stack_chart(title, steps, bands, Axis("share of the groups", "share"), caption)


def replay_share(lines: Sequence[StepLine]) -> float | None:
    """The replays' part of the advantage mass of some steps; None where there is no mass."""
    replay = sum(line.numbers.get("advantage/mass/replay", 0.0) for line in lines)
    fresh = sum(line.numbers.get("advantage/mass/fresh", 0.0) for line in lines)
    return replay / (replay + fresh) if replay + fresh > 0 else None


def weight_charts(table: StepTable, label: str = "") -> list[Drawing | None]:
    """The replays' parts of advantage mass and tokens, and log-probs of fresh and replayed tokens."""
    of = f" ({label})" if label else ""
    lines = [line for line in table.lines(0, len(table)) if "advantage/mass/replay" in line.numbers]
    mass = [(float(line.step), share) for line in lines if (share := replay_share([line])) is not None]
    tokens = [(float(line.step), share) for line in lines if (share := _token_share(line)) is not None]
    names = (
        ("logprob/fresh", "fresh"),
        ("logprob/replay", "replays, this policy"),
        ("logprob/replay_behaviour", "replays, their sampler"),
    )
    logprobs = [Curve(words, table.points(name), dashed="behaviour" in name) for name, words in names]
    return [
        line_chart(
            f"How much the replays weigh{of}",
            [Curve("advantage mass", mass), Curve("tokens", tokens, dashed=True)],
            STEP,
            Axis("the replays' share", "share"),
            caption="Advantage mass: the sum of |advantage| over tokens in the loss.",
        ),
        line_chart(
            f"How likely the replays are{of}", logprobs, STEP, Axis("log-prob, nats a token"),
            caption="Log-probs rise where the policy learns the replayed responses.",
        )
        if lines
        else None,
    ]  # fmt: skip


def lost_share(table: StepTable, window: int = 16) -> list[tuple[float, float]]:
    """(step, lost questions over all questions of the last ``window`` steps)."""
    lines = [line for line in table.lines(0, len(table)) if "prompts/lost" in line.numbers]
    found = []
    for end in range(1, len(lines) + 1):
        last = [line.numbers for line in lines[max(0, end - window) : end]]
        if asked := sum(numbers.get("rollout/prompts", 0.0) for numbers in last):
            found.append((float(lines[end - 1].step), sum(numbers["prompts/lost"] for numbers in last) / asked))
    return found


def _token_share(line: StepLine) -> float | None:
    replay, fresh = line.numbers.get("loss/tokens/replay"), line.numbers.get("loss/tokens/fresh")
    return replay / (replay + fresh) if replay is not None and fresh is not None and replay + fresh > 0 else None


def _filled(table: StepTable, name: str, at: Sequence[int]) -> list[float]:
    column = table.columns.get(name)
    return [0.0 if column is None or column[place] != column[place] else column[place] for place in at]


def _sum(table: StepTable, columns: Sequence[str], at: int) -> float:
    return sum(_filled(table, column, [at])[0] for column in columns)


def _replayed(table: StepTable) -> bool:
    return any(value > 0 for name in table.entries("group/replays")[1:] for value in table.columns[name])
