"""What each page shows, from the files of runs to HTML."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlep.core.errors import DataError
from rlep.view import rollouts
from rlep.view.charts import Curve, picture
from rlep.view.compare_page import CURVES, evaluation_points, source_of
from rlep.view.rollouts import GroupView, Row
from rlep.view.run_files import (
    LONGEST_LINE,
    JsonObjects,
    RunPlace,
    StepLine,
    number_of,
    or_note,
    read_json,
    read_tail,
)
from rlep.view.state import flat, summary_of
from rlep.view.steps import StepTable, read_steps
from rlep.view.templating import rendered

A_PAGE = 100
EVENTS_SHOWN = 100
FILTERS: Mapping[str, Callable[[GroupView], bool]] = {
    "all": lambda one: True,
    "taught": lambda one: one.mass > 0,
    "rescued": lambda one: one.rescued,
    "wrong": lambda one: one.all_wrong,
}
ORDERS: Mapping[str, Callable[[GroupView], float]] = {
    "short": lambda one: one.shortest,
    "long": lambda one: -one.tokens,
    "gap": lambda one: -one.gap,
}


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """A question in two evaluations: correct samples of all, and of those that both have."""

    prompt_id: str
    question: str
    correct: int
    samples: int
    before: int | None
    """Correct ones of ``shared`` in the evaluation before; None where there was none."""
    now: int
    """Correct ones of ``shared``."""
    shared: int
    """Samples that both have, by number: they have the same seeds, so that only the policy differs."""

    @property
    def change(self) -> int:
        """Correct ones more than in the evaluation before; 0 where there was none."""
        return 0 if self.before is None else self.now - self.before


@dataclass(frozen=True, slots=True)
class Member:
    """A trajectory of a group, with its text where that was written."""

    row: Row
    text: Row | None

    @property
    def tokens(self) -> Iterator[tuple[int, float | None]]:
        """(token id, log-prob) of the first 4,096."""
        if self.text is None:
            return iter(())
        return zip((self.text["token_ids"] or ())[:4096], (self.text["logprobs"] or ())[:4096], strict=False)


def overview(runs: Sequence[RunPlace]) -> str:
    """The list of runs, the last changed first."""
    lines = sorted((summary_of(one) for one in runs), key=lambda line: line.changed, reverse=True)
    return rendered("overview.html", runs=lines)


def run(place: RunPlace, page: int, seen: str) -> str:
    """Curves, events, evaluations and steps of a run; ``seen`` is the ``mark_of`` it before they were read."""
    table, notes = read_steps(place)
    events = read_tail(place, "events.jsonl", LONGEST_LINE)
    evaluations = read_tail(place, "evaluations.jsonl", LONGEST_LINE)
    config, missing = read_json(place, "config.json")
    sources = sorted({source_of(line) for line in evaluations.lines})
    held_out = [Curve(source, evaluation_points(evaluations.lines, source, table, "steps")) for source in sources]
    drawn = [
        picture("Evaluations: avg", held_out),
        *(picture(title, curves_of(table, names)) for title, names in CURVES),
    ]
    end, written = len(table) - page * A_PAGE, set(rollouts.steps_with(place, "rollouts"))
    return rendered(
        "run.html",
        run=place.name,
        seen=seen,
        summary=summary_of(place),
        pictures=[one for one in drawn if one],
        columns=[name for _, names in CURVES for name in names if name in table.columns],
        lines=table.lines(end - A_PAGE, end)[::-1],
        page=page,
        last=max(0, (len(table) - 1) // A_PAGE),
        events=[_event(line) for line in reversed(events.lines[-EVENTS_SHOWN:])],
        evaluations=_evaluation_rows(evaluations),
        written=written,
        sampled=set(rollouts.steps_with(place, "samples")),
        config=flat(config),
        notes=[
            *notes,
            *events.notes,
            *(note for note in evaluations.notes if not note.endswith(" is missing")),
            *missing,
            *([] if written else ["rollouts/ has no files: there are no pages of steps"]),
        ],
    )


def step(place: RunPlace, number: int, show: str, page: int) -> str:
    """The groups of a step: which of them taught."""
    groups, notes = or_note(lambda: rollouts.read_groups(place, number))
    try:
        questions = rollouts.read_questions(place, number)
    except DataError as error:
        questions = {}
        notes.append(str(error))
    chosen = [one for one in groups if FILTERS.get(show, FILTERS["all"])(one)]
    if show in ORDERS:
        chosen.sort(key=ORDERS[show])
    rewards = [row["reward"] for one in groups for row in one.rows if math.isfinite(row["reward"])]
    return rendered(
        "step.html",
        run=place.name,
        step=number,
        steps=_beside(number, rollouts.steps_with(place, "rollouts")),
        show=show if show in FILTERS or show in ORDERS else "all",
        choices=[*FILTERS, *ORDERS],
        groups=chosen[page * A_PAGE : (page + 1) * A_PAGE],
        questions=questions,
        found=len(chosen),
        total=len(groups),
        sampled=_sampled(place, number),
        page=page,
        last=max(0, (len(chosen) - 1) // A_PAGE),
        histogram=histogram(rewards),
        low=min(rewards, default=0.0),
        high=max(rewards, default=0.0),
        notes=notes,
    )


def _sampled(place: RunPlace, number: int) -> StepLine | None:
    """The step's numbers, where dynamic sampling dropped groups of it: they have no rows."""
    table, _ = read_steps(place)
    at = next((at for at, step in enumerate(table.steps) if step == number), None)
    line = None if at is None else table.line(at)
    if line is None or not (dropped := line.numbers.get("selection/discarded")):
        return None
    # older versions counted in rollout/… what was kept
    whole = "selection/accuracy" in line.numbers or line.numbers.get("rollout/prompts") == dropped
    return line if whole else None


def group(place: RunPlace, number: int, which: int) -> str:
    """Every response of a group, fresh beside replayed."""
    groups, notes = or_note(lambda: rollouts.read_groups(place, number))
    found = next((one for one in groups if one.number == which), None)
    if found is None and not notes:
        raise DataError(f"step {number} has no group {which}")
    texts, missing = or_note(lambda: rollouts.read_texts(place, number, which))
    by_member = {row["member"]: row for row in texts}
    if not texts and not missing:
        missing = ["the texts of this group were not written: see rollouts.groups and rollouts.watch"]
    members = [Member(row, by_member.get(row["member"])) for row in (found.rows if found else ())]
    return rendered(
        "group.html",
        run=place.name,
        step=number,
        group=which,
        groups=_beside(which, [one.number for one in groups]),
        prompt=found.rows[0]["prompt_id"] if found else None,
        question=texts[0]["question"] if texts else None,
        reference=texts[0]["reference"] if texts else None,
        halves=[
            ("Fresh responses", [one for one in members if not one.row["replayed"]]),
            ("Replays", [one for one in members if one.row["replayed"]]),
        ],
        notes=[*notes, *missing],
    )


def evaluation(place: RunPlace, number: int, asked: str | None, page: int) -> str:
    """The questions of an evaluation: those whose answers changed first; of one question every sample."""
    held = rollouts.steps_with(place, "samples")
    before = next((one for one in held if one < number), None)
    rows, notes = or_note(lambda: rollouts.read_samples(place, number))
    earlier, more = or_note(lambda: rollouts.read_samples(place, before)) if before is not None else ([], [])
    samples, damage = (
        or_note(lambda: rollouts.read_samples(place, number, asked, texts=True)) if asked is not None else ([], [])
    )
    results = sorted(_results(rows, earlier), key=lambda one: (-abs(one.change), one.prompt_id))
    return rendered(
        "evaluation.html",
        run=place.name,
        step=number,
        steps=_beside(number, held),
        before=before,
        results=results[page * A_PAGE : (page + 1) * A_PAGE],
        flipped=sum(one.change != 0 for one in results),
        shared=max((one.shared for one in results), default=0),
        total=len(results),
        page=page,
        last=max(0, (len(results) - 1) // A_PAGE),
        asked=asked,
        samples=samples[:A_PAGE],
        notes=[*notes, *more, *damage],
    )


def histogram(values: Sequence[float], bins: int = 10) -> list[tuple[float, float, int]]:
    """(from, to, how many) of equal widths; the last one has its end in it."""
    if not values:
        return []
    low, high = min(values), max(values)
    width = (high - low) / bins
    if not width:
        return [(low, high, len(values))]
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [(low + at * width, low + (at + 1) * width, count) for at, count in enumerate(counts)]


def curves_of(table: StepTable, names: Sequence[str]) -> list[Curve]:
    """A curve over the steps for each of these metrics."""
    return [Curve(name, table.points(name)) for name in names]


def _event(line: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """(time, event, step, the rest)."""
    seconds = number_of(line.get("time")) or 0.0
    rest = ", ".join(f"{key}={value}" for key, value in line.items() if key not in ("time", "event", "step"))
    step = line.get("step")
    clock = time.strftime("%H:%M:%S", time.localtime(min(max(seconds, 0.0), 2**33)))
    return clock, str(line.get("event")), "" if step is None else str(step), rest[:1000]


def _evaluation_rows(evaluations: JsonObjects) -> list[tuple[int, str, float | None, float | None]]:
    """(step, data source, avg, best), newest first."""
    rows = [line for line in evaluations.lines if isinstance(line.get("step"), int)]
    return [
        (line["step"], source_of(line), number_of(line.get("avg")), number_of(line.get("best")))
        for line in reversed(rows)
    ]


def _results(rows: Sequence[Row], earlier: Sequence[Row]) -> list[QuestionResult]:
    before, now = _correct(earlier), _correct(rows)
    texts = {row["prompt_id"]: row["question"] for row in rows}
    found = []
    for name, samples in now.items():
        held = before.get(name, {})
        shared = held.keys() & samples.keys()
        found.append(
            QuestionResult(
                name,
                texts[name],
                sum(samples.values()),
                len(samples),
                sum(held[one] for one in shared) if shared else None,
                sum(samples[one] for one in shared),
                len(shared),
            )
        )
    return found


def _correct(rows: Sequence[Row]) -> dict[str, dict[int, bool]]:
    """Question → sample → whether it is correct."""
    found: dict[str, dict[int, bool]] = {}
    for row in rows:
        found.setdefault(row["prompt_id"], {})[row["sample"]] = row["status"] == "correct"
    return found


def _beside(number: int, held: Sequence[int]) -> tuple[int | None, int | None]:
    """The numbers before and after."""
    return max((one for one in held if one < number), default=None), min(
        (one for one in held if one > number), default=None
    )
