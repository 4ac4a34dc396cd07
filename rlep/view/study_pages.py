"""Studies: arms compared at one compute budget, from what a study writes into its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlep.view.charts import Axis, Curve, Drawing, line_chart
from rlep.view.run_files import MOST_BYTES, RunPlace, list_of, newest, number_of, read_json, section_of
from rlep.view.state import summaries_of
from rlep.view.study_tables import arm_rows, comparison_rows, notes_of, tuning_rows
from rlep.view.templating import as_file, rendered

MOST_PHASES = 200
OVER = (("compute, million tokens", 0, 1e6), ("steps", 1, 1.0), ("minutes of work", 2, 60.0))
"""X axis of the curves, its place in a point of a curve, and its divisor."""

Cells = Mapping[str, str]
"""Column → text."""


@dataclass(frozen=True, slots=True)
class StudyLine:
    """A study in the list."""

    name: str
    arms: str
    seeds: str
    state: str


def studies(places: Sequence[RunPlace]) -> str:
    """The list of studies."""
    return rendered("studies.html", studies=[_line(place) for place in newest(places)], total=len(places))


def study(place: RunPlace, runs: Sequence[RunPlace]) -> str:
    """Arms, seeds, differences and curves of a study, and its runs among ``runs``."""
    plan, _ = read_json(place, "plan.json")
    whole, missing = read_json(place, "study.json", MOST_BYTES)
    notes = [*missing]
    if missing == ("study.json is missing",):
        notes = ["study.json is missing: rlep study report writes it from the runs that are complete"]
    phases = [run for run in runs if run.directory.is_relative_to(place.directory)]
    lines, unlisted = summaries_of(phases[:MOST_PHASES])
    return rendered(
        "study.html",
        study=place.name,
        runs=lines,
        more=max(0, len(phases) - MOST_PHASES),
        **body_of(whole, plan, place.name, [*notes, *unlisted]),
    )


def study_file(whole: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Render the study's page as one file."""
    return as_file("study_file.html", **body_of(whole, plan, "study", []))


def body_of(whole: Mapping[str, Any], plan: Mapping[str, Any], name: str, notes: list[str]) -> dict[str, object]:
    """Values of the template; parts that ``whole`` does not hold as a study's file does become notes."""

    def table(rows: Callable[[], Sequence[Any]], what: str) -> Sequence[Any]:
        try:
            return rows() if whole else []
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            notes.append(f"study.json does not say its {what}: {error!r:.200}")
            return []

    return {
        "title": str(whole.get("name", section_of(plan, "study").get("name", name))),
        "budget": number_of(whole.get("budget", section_of(plan, "study").get("budget"))),
        "control": whole.get("best_control"),
        "claims": ", ".join(map(str, list_of(whole.get("claims")))),
        "several": min(len(list_of(whole.get("seeds", section_of(plan, "study").get("seeds")))), 1000),
        "planned": _planned(plan),
        "arms": table(lambda: arm_rows(whole), "arms"),
        "seeds": table(lambda: seed_rows(whole), "seeds"),
        "differences": table(lambda: comparison_rows(whole), "differences"),
        "tuning": table(lambda: tuning_rows(whole), "tuning"),
        "pictures": table(lambda: curves_of(whole), "curves"),
        "remarks": table(lambda: notes_of(whole), "notes"),
        "notes": notes,
    }


def seed_rows(whole: Mapping[str, Any]) -> Sequence[Cells]:
    """A row for each arm and seed. Raises KeyError, TypeError or ValueError where the study's file is no such."""
    rows = []
    for arm in whole["arms"]:
        for seed, figures in arm["seeds"].items():
            accuracy = {f"{name} %": f"{100 * figures[name]:.1f}" for name in ("area", "final", "pass")}
            rows.append(
                {"arm": str(arm["name"]), "seed": str(seed)}
                | accuracy
                | {"compute": f"{figures['compute'] / 1e6:.4g} M", "of the budget": f"{100 * figures['reached']:.0f} %"}
                | {"": "its last accuracy is taken for the rest" if figures["short"] else ""}
            )
        for seed, why in arm["failed"].items():
            blank = dict.fromkeys(("area %", "final %", "pass %", "compute", "of the budget"), "")
            failed = {"": f"failed at {why['phase']}: {why['reason']}"}
            rows.append({"arm": str(arm["name"]), "seed": str(seed)} | blank | failed)
    return rows


def curves_of(whole: Mapping[str, Any]) -> list[Drawing]:
    """Held-out accuracy over compute, steps and time, and pass@n over compute; each evaluation holds until the next one.

    Raises like ``seed_rows``.
    """
    caption = "Means over questions and seeds; dashed lines are controls. Earlier phases and collections count."
    correct, solved = Axis("correct responses", "share"), Axis("questions with a correct response", "share")
    drawn = [
        line_chart(f"Held-out accuracy over {name}", _curves(whole, at, scale, 3), Axis(name), correct, caption=caption)
        for name, at, scale in OVER
    ]
    name, at, scale = OVER[0]
    drawn.append(
        line_chart(f"Held-out pass@n over {name}", _curves(whole, at, scale, 4), Axis(name), solved, caption=caption)
    )
    return [chart for chart in drawn if chart is not None]


def _curves(whole: Mapping[str, Any], at: int, scale: float, of: int) -> list[Curve]:
    """One of each arm, the mean over its seeds; one of each seed where they were evaluated at different steps.

    ``at`` and ``of`` are places in a point; points that an older version wrote have no pass@n.
    """
    found = []
    for arm in whole["arms"]:
        several = {
            str(seed): [(float(point[at]) / scale, float(point[of])) for point in figures["curve"] if len(point) > of]
            for seed, figures in arm["seeds"].items()
        }
        lengths = {len(points) for points in several.values()}
        if len(lengths) == 1:
            columns = zip(*several.values(), strict=True)
            means = [tuple(sum(point[i] for point in column) / len(column) for i in (0, 1)) for column in columns]
            found.append(Curve(str(arm["name"]), _held([(x, y) for x, y in means]), dashed=bool(arm["control"])))
        else:
            found += [
                Curve(f"{arm['name']}, seed {seed}", _held(points), dashed=bool(arm["control"]))
                for seed, points in several.items()
            ]
    return found


def _held(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Each value until the next point."""
    path = []
    for number, (x, y) in enumerate(points):
        if number:
            path.append((x, points[number - 1][1]))
        path.append((x, y))
    return tuple(path)


def _line(place: RunPlace) -> StudyLine:
    plan, _ = read_json(place, "plan.json")
    whole, missing = read_json(place, "study.json", MOST_BYTES)
    arms = [arm.get("name") for arm in list_of(whole.get("arms", plan.get("arm"))) if isinstance(arm, dict)]
    seeds = list_of(whole.get("seeds", section_of(plan, "study").get("seeds")))
    state = "planned" if missing else f"best control: {whole.get('best_control')}"
    return StudyLine(place.name, ", ".join(map(str, arms)), ", ".join(map(str, seeds)), state)


def _planned(plan: Mapping[str, Any]) -> Sequence[Cells]:
    """Arm and phases of ``plan.json``."""
    return [
        {"arm": f"{arm.get('name')}{' (control)' if arm.get('control') else ''}", "phases": _phases(arm.get("phase"))}
        for arm in list_of(plan.get("arm"))
        if isinstance(arm, dict)
    ]


def _phases(phases: object) -> str:
    texts = []
    for phase in list_of(phases):
        if not isinstance(phase, dict):
            continue
        given = ", ".join(f"{key} = {value}" for key, value in section_of(phase, "set").items())
        texts.append(f"{phase.get('command')}{f' ({given})' if given else ''}")
    return " → ".join(texts)
