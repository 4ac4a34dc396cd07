"""Run directories in, one HTML page and one picture out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rlep.view.charts import STEP, Axis, Curve, Drawing, Points, bar_chart, line_chart
from rlep.view.last_steps import LastSteps, end_of
from rlep.view.record import LIVE, PHASES, CollectionFiles, RunRecord, load_runs, method_of
from rlep.view.run_charts import AXES, evaluation_curve, group_charts, lost_share, seconds_chart, weight_charts
from rlep.view.summary import Summary, curve, percent, summary_of
from rlep.view.templating import as_file, rendered

EXTRAS = ("evaluate", "checkpoint")
"""Work between steps; ``time/<name>`` each."""
ACCURACY = Axis("correct samples, mean over questions", "share")


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report lies, and its numbers."""

    html: Path
    svg: Path
    """Its first chart, for a page of your own."""
    summary: Summary


def build_report(run_directories: Sequence[Path], out: Path) -> Report:
    """Write ``report.html`` (self-contained) and ``report.svg`` into the directory ``out``.

    Runs may be in progress and files may be missing: the page shows what there is and says what is not.
    DataError for a path that is not a directory.
    """
    records = load_runs(run_directories)
    found = summary_of(records)
    charts = charts_of(records, found)
    report = Report(out / "report.html", out / "report.svg", found)
    out.mkdir(parents=True, exist_ok=True)
    report.html.write_text(page(records, found, charts), encoding="utf-8")
    if charts:
        report.svg.write_text(rendered("picture.svg", one=charts[0]), encoding="utf-8")
    return report


def page(records: Sequence[RunRecord], found: Summary, charts: Sequence[Drawing]) -> str:
    """The whole page."""
    ends = [(run.label, end) for run in records if (end := end_of(run.spans))]
    return as_file(
        "report.html",
        title=" · ".join(run.label for run in found.runs) or "rlep",
        headline=found.headline(),
        status=status(records),
        summary=found.rows(),
        source=found.data_source or "held-out questions",
        pictures=charts,
        ends=ends,
        evaluations=evaluations(records),
        seconds=seconds(records),
        last_steps=last_steps(ends),
        events=[
            {"run": run.label, "event": name, "times": many}
            for run in records
            for name, many in sorted(run.events.items())
        ],
        runs=[(run.label, facts(run), json.dumps(run.config, indent=2, ensure_ascii=False)) for run in records],
    )


def charts_of(records: Sequence[RunRecord], found: Summary) -> list[Drawing]:
    """The charts, in the order of the page."""
    trained = sorted((run for run in records if run.role != "collection"), key=_prominence)
    replayed = next((run for run in trained if run.role == "rlep"), None)
    grouped = replayed or next(iter(trained), None)
    collection = next((run.collection for run in sorted(records, key=_prominence) if run.collection), None)
    main = [run for run in trained if run.role in ("baseline", "rlep")] or trained[:1]
    drawn = [
        *accuracy_charts(trained, found, collection),
        *(seconds_chart(f"Where the seconds of a step go ({run.label})", run.table) for run in main),
        *(group_charts(grouped.table, grouped.label) if grouped else ()),
        *(weight_charts(replayed.table, replayed.label) if replayed else ()),
        coverage(collection),
        *_retention(trained),
    ]
    return [chart for chart in drawn if chart is not None]


def accuracy_charts(
    runs: Sequence[RunRecord], found: Summary, collection: CollectionFiles | None
) -> list[Drawing | None]:
    """Held-out accuracy over steps, time and compute; the main runs with their intervals, controls dashed."""
    method = method_of(runs)
    clock = "" if method == LIVE else " RLEP's clock does not contain what its pool cost."
    cost = f" Collecting it took {collection.wall_s / 60:.1f} minutes." if collection and collection.wall_s else ""
    rings = (
        f"Rings: the baseline's best evaluation, and {method}'s first that is not below it, where the difference there is "
        "certain."
    )
    axes = (
        ("steps", "Held-out accuracy by step", STEP, f"The band is the 95 % interval over questions. {rings}"),
        (
            "time",
            "Held-out accuracy by wall clock",
            Axis("minutes the run has worked"),
            f"The clock of a run counts from its own start, with evaluations and without pauses.{clock}{cost}",
        ),
        (
            "compute",
            "Held-out accuracy by compute",
            Axis(AXES["compute"]),
            "Every token that went through the model in the run, prompts included. A pool costs more: the run behind it and "
            "the collection are not in this figure.",
        ),
    )
    return [
        line_chart(
            title,
            [_curve(run, found.data_source, over) for run in runs],
            axis,
            ACCURACY,
            caption=caption,
            rings=_rings(found, over),
        )
        for over, title, axis, caption in axes
    ]


def coverage(collection: CollectionFiles | None) -> Drawing | None:
    """Questions by how many verified responses the pool holds for them."""
    if collection is None:
        return None
    bars = [
        (bucket.label.replace("-", "–"), float(bucket.questions), _covered(bucket.fewest, collection.minimum))
        for bucket in collection.buckets
    ]
    words = f"verified responses stored for a question ({collection.minimum} or more: eligible for replay)"
    return bar_chart("What the pool covers", bars, Axis(words), Axis("questions"), coverage_text(collection))


def coverage_text(collection: CollectionFiles) -> str:
    """The coverage in words."""
    parts = [f"{collection.questions:,} questions"]
    for count, words in ((collection.covered, "with an answer"), (collection.eligible, "eligible for replay")):
        if count is not None:
            parts.append(f"{count / collection.questions:.0%} {words}")
    if collection.admitted is not None:
        parts.append(f"{collection.admitted:,} responses stored")
    return ", ".join(parts)


def status(records: Sequence[RunRecord]) -> list[str]:
    """Parts that are not complete, in words."""
    notes: list[str] = []
    for run in records:
        if run.role != "collection" and not run.finished:
            planned = f" of {run.planned_steps}" if run.planned_steps else ""
            notes.append(f"{run.label}: in progress or interrupted, {run.table.made}{planned} steps on record")
        notes += [f"{run.label}: {note}" for note in run.notes]
    return notes


def evaluations(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """The last evaluation of every run and data source; columns of pass@k that all of them have."""
    latest = [
        (run, row)
        for run in records
        for row in {
            (row.data_source, row.samples): row for row in sorted(run.evaluations, key=lambda e: e.step)
        }.values()
    ]
    common = sorted(set.intersection(*(set(row.passes) for _, row in latest)) - {1}) if latest else []
    rows = []
    for run, row in latest:
        interval = "" if row.low is None or row.high is None else f" [{100 * row.low:.1f}, {100 * row.high:.1f}]"
        cells = {
            "run": run.label,
            "data source": row.data_source,
            "step": str(row.step),
            "n": str(row.samples),
            "avg@n": percent(row.avg) + interval,
            "maj@n": percent(row.maj),
            "best@n": percent(row.best),
        }
        rows.append(cells | {f"pass@{k}": percent(row.passes[k]) for k in common})
    return rows


def seconds(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Mean seconds of a step by part, and the totals of work between steps."""
    rows: list[dict[str, str]] = []
    for run in records:
        if "time/step" in run.table.columns:
            cells = {"run": run.label, "step (mean)": _mean(run, "step")}
            cells |= {phase: _mean(run, phase) for phase in PHASES}
            rows.append(cells | {f"{name} (total)": _total(run, name) for name in EXTRAS})
    return rows


def last_steps(ends: Sequence[tuple[str, LastSteps]]) -> list[dict[str, str]]:
    """Critical path and idle roles of the last whole step of each run, by label."""
    return [
        {
            "run": label,
            "step": str(last.number),
            "seconds": f"{last.seconds:.2f}",
            "critical path": ", ".join(
                f"{what} {s:.2f} s ({100 * s / last.seconds:.0f} %)" for what, s in last.path_seconds().items()
            ),
            "idle": ", ".join(f"{role} {100 * share:.0f} %" for role, share in last.idle.items()),
        }
        for label, last in ((label, end.last) for label, end in ends)
    ]


def facts(run: RunRecord) -> list[Mapping[str, str]]:
    """Where a run lies, and what made it."""
    known = {"directory": str(run.directory)}
    known |= {key: value if isinstance(value, str) else json.dumps(value) for key, value in run.manifest.items()}
    return [{"fact": key, "value": value} for key, value in known.items()]


def _curve(run: RunRecord, source: str | None, over: str) -> Curve:
    found = evaluation_curve(run.label, curve(run, source), run.table, over)
    return _of_role(run, found.points, found.band if run.role in ("baseline", "rlep") else ())


def _of_role(run: RunRecord, points: Points, band: Sequence[tuple[float, float, float]] = ()) -> Curve:
    """A run's curve: baseline and the run with replays have their own colours, controls are dashed."""
    colour = {"baseline": 7, "rlep": 1}.get(run.role)
    return Curve(run.label, points, band, dashed=run.role not in ("baseline", "rlep"), colour=colour)


def _rings(found: Summary, over: str) -> list[tuple[float, float]]:
    """The baseline's peak, and where the other run reaches it if that is certain; none over compute."""
    at = found.crossing
    if at is None or over == "compute":
        return []
    steps = over == "steps"
    places = [(at.baseline_step if steps else at.baseline_wall_s / 60, at.peak)]
    if at.certain and at.rlep is not None:
        places.append((at.rlep.step if steps else at.rlep.wall_s / 60, at.rlep.avg))
    return places


def _retention(runs: Sequence[RunRecord]) -> list[Drawing | None]:
    """Questions solved so far; of each step's questions, those that were solved before and are not now."""
    solved = [_of_role(run, run.table.points("prompts/solved")) for run in runs]
    lost = [_of_role(run, lost_share(run.table)) for run in runs]
    return [
        line_chart("Questions solved so far", solved, STEP, Axis("questions")),
        line_chart(
            "Questions lost again",
            lost,
            STEP,
            Axis("share of the questions asked", "share"),
            caption="Solved by a fresh response at an earlier visit, and by none at this one; a mean over 16 steps.",
        ),
    ]


def _covered(fewest: int, minimum: int) -> str:
    return "c2" if fewest >= minimum else "c4" if fewest else "c1"


def _prominence(run: RunRecord) -> int:
    return ("baseline", "rlep", "control", "collection").index(run.role)


def _mean(run: RunRecord, phase: str) -> str:
    values = list(_times(run, phase))
    return f"{fmean(values):.2f}" if values else "–"


def _total(run: RunRecord, phase: str) -> str:
    values = list(_times(run, phase))
    return f"{sum(values):.1f}" if values else "–"


def _times(run: RunRecord, phase: str) -> Iterable[float]:
    return (value for _, value in run.table.points(f"time/{phase}"))
