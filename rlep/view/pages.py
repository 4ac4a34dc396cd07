"""Pages of a step, a group and an evaluation."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from rlep.core.errors import DataError
from rlep.view import rollouts
from rlep.view.charts import Axis, bar_chart
from rlep.view.episode import EpisodeView, episode_in
from rlep.view.rollouts import GroupView, Row
from rlep.view.run_files import RunPlace, StepLine, number_of, or_note
from rlep.view.run_page import A_PAGE
from rlep.view.steps import read_steps
from rlep.view.templating import figure, rendered

MOST_WORDS = 1500
"""Of a response that is compared: the time of a comparison grows with the square."""
FILTERS: Mapping[str, Callable[[GroupView], bool]] = {
    "all": lambda visit: True,
    "taught": lambda visit: visit.mass > 0,
    "rescued": lambda visit: visit.rescued,
    "wrong": lambda visit: visit.all_wrong,
}
ORDERS: Mapping[str, Callable[[GroupView], float]] = {
    "short": lambda visit: visit.shortest,
    "long": lambda visit: -visit.tokens,
    "gap": lambda visit: -visit.gap,
}
CHOICES: Mapping[str, str] = {
    "all": "all",
    "taught": "with a gradient",
    "rescued": "rescued by a replay",
    "wrong": "all wrong",
    "short": "shortest first",
    "long": "longest first",
    "gap": "largest gap first",
}
"""Filter or order → its words."""


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, search and page in an address."""

    page: int = 0
    show: str = "all"
    q: str = ""
    """Text that questions or responses must have."""
    status: str = ""
    """Status that a response must have; empty: any."""
    pair: tuple[int, int] | None = None
    """Members of a group whose texts are compared."""


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
    def tokens(self) -> Iterator[tuple[int, float | None, bool | None]]:
        """(token id, log-prob, whether the policy sampled it) of the first 4,096."""
        if self.text is None:
            return iter(())
        ids, logprobs = ((self.text[name] or ())[:4096] for name in ("token_ids", "logprobs"))
        return zip(ids, logprobs, (self.text["sampled"] or repeat(True)), strict=False)

    @property
    def episode(self) -> EpisodeView | None:
        """Its turns, where it is an episode."""
        return None if self.text is None else episode_in(self.text)


def step(place: RunPlace, number: int, query: Query) -> str:
    """The groups of a step: which of them taught."""
    groups, notes = or_note(lambda: rollouts.read_groups(place, number))
    try:
        questions = rollouts.read_questions(place, number)
    except DataError as error:
        questions = {}
        notes.append(str(error))
    show = query.show
    chosen = [visit for visit in groups if FILTERS.get(show, FILTERS["all"])(visit)]
    if query.status:
        chosen = [visit for visit in chosen if any(row["status"] == query.status for row in visit.rows)]
    if query.q:
        matching, missing = or_note(lambda: sorted(rollouts.groups_with(place, number, query.q)))
        chosen = [visit for visit in chosen if visit.number in matching]
        notes += missing
    if show in ORDERS:
        chosen.sort(key=ORDERS[show])
    rewards = [row["reward"] for visit in groups for row in visit.rows if number_of(row["reward"]) is not None]
    return rendered(
        "step.html",
        run=place.name,
        step=number,
        steps=_beside(number, rollouts.steps_with(place, "rollouts")),
        show=show if show in FILTERS or show in ORDERS else "all",
        choices=CHOICES,
        q=query.q,
        status=query.status,
        statuses=sorted({str(row["status"]) for visit in groups for row in visit.rows}),
        groups=chosen[query.page * A_PAGE : (query.page + 1) * A_PAGE],
        questions=questions,
        found=len(chosen),
        total=len(groups),
        sampled=_sampled(place, number),
        page=query.page,
        last=max(0, (len(chosen) - 1) // A_PAGE),
        rewards=bar_chart(
            "Rewards of the step",
            [(_range(low, high), float(count), "c0") for low, high, count in histogram(rewards)],
            Axis("reward"),
            Axis("trajectories"),
        ),
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


def group(place: RunPlace, number: int, which: int, query: Query) -> str:
    """Every response of a group, fresh beside replayed."""
    groups, notes = or_note(lambda: rollouts.read_groups(place, number))
    found = next((visit for visit in groups if visit.number == which), None)
    if found is None and not notes:
        raise DataError(f"step {number} has no group {which}")
    texts, missing = or_note(lambda: rollouts.read_texts(place, number, which))
    by_member = {row["member"]: row for row in texts}
    if not texts and not missing:
        missing = ["the texts of this group were not written: see rollouts.groups and rollouts.watch"]
    rows = found.rows if found else ()
    members = [Member(row, by_member.get(row["member"])) for row in rows if query.status in ("", row["status"])]
    ends = (min(by_member, default=0), max(by_member, default=0))
    pair = query.pair if query.pair and set(query.pair) <= by_member.keys() else ends
    return rendered(
        "group.html",
        run=place.name,
        step=number,
        group=which,
        groups=_beside(which, [visit.number for visit in groups]),
        prompt=found.rows[0]["prompt_id"] if found else None,
        question=texts[0]["question"] if texts else None,
        seen=texts[0]["prompt"] if texts else None,
        texts=sorted(by_member),
        pair=pair,
        difference=word_difference(*(str(by_member[member]["text"]) for member in pair)) if query.pair == pair else [],
        status=query.status,
        statuses=sorted({str(row["status"]) for row in rows}),
        reference=texts[0]["reference"] if texts else None,
        halves=[
            ("Fresh responses", [member for member in members if not member.row["replayed"]]),
            ("Replays", [member for member in members if member.row["replayed"]]),
        ],
        notes=[*notes, *missing],
    )


def evaluation(place: RunPlace, number: int, asked: str | None, query: Query) -> str:
    """The questions of an evaluation: those whose answers changed first; of one question every sample."""
    held = rollouts.steps_with(place, "samples")
    before = next((other for other in held if other < number), None)
    rows, notes = or_note(lambda: rollouts.read_sample_rows(place, number))
    earlier, more = or_note(lambda: rollouts.read_sample_rows(place, before)) if before is not None else ([], [])
    samples, damage = (
        or_note(lambda: rollouts.read_sample_rows(place, number, asked, texts=True)) if asked is not None else ([], [])
    )
    results = sorted(_results(rows, earlier), key=lambda result: (-abs(result.change), result.prompt_id))
    with_status = {row["prompt_id"] for row in rows if query.status in ("", row["status"])}
    chosen = [
        result
        for result in results
        if result.prompt_id in with_status and query.q.lower() in str(result.question).lower()
    ]
    page = query.page
    return rendered(
        "evaluation.html",
        run=place.name,
        step=number,
        steps=_beside(number, held),
        before=before,
        results=chosen[page * A_PAGE : (page + 1) * A_PAGE],
        q=query.q,
        status=query.status,
        statuses=sorted({str(row["status"]) for row in rows}),
        flipped=sum(result.change != 0 for result in results),
        shared=max((result.shared for result in results), default=0),
        total=len(results),
        page=page,
        last=max(0, (len(chosen) - 1) // A_PAGE),
        asked=asked,
        samples=[(row, episode_in(row)) for row in samples[:A_PAGE]],
        notes=[*notes, *more, *damage],
    )


def word_difference(before: str, after: str) -> list[tuple[str, str]]:
    """("same" | "out" | "in", text) from one text to another, word by word, of the first ``MOST_WORDS`` words of each."""
    left, right = (re.findall(r"\s+|[^\s]+", text)[:MOST_WORDS] for text in (before, after))
    found = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, left, right).get_opcodes():
        if kind == "equal":
            found.append(("same", "".join(left[a:b])))
            continue
        found += [(name, "".join(words)) for name, words in (("out", left[a:b]), ("in", right[c:d])) if words]
    return found


def histogram(values: Sequence[float], bins: int = 10) -> list[tuple[float, float, int]]:
    """(from, to, how many): each value where they are few, else of equal widths, the last one with its end in it."""
    counted = Counter(values)
    if len(counted) <= bins:
        return [(value, value, counted[value]) for value in sorted(counted)]
    low, high = min(values), max(values)
    width = (high - low) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [(low + at * width, low + (at + 1) * width, count) for at, count in enumerate(counts)]


def _range(low: float, high: float) -> str:
    return f"{figure(low)} to {figure(high)}" if low < high else figure(low)


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
                sum(held[sample] for sample in shared) if shared else None,
                sum(samples[sample] for sample in shared),
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
    return max((other for other in held if other < number), default=None), min(
        (other for other in held if other > number), default=None
    )
