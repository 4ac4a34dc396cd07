"""Pages of pools: counters of the pool, some of its questions, and what a run's steps drew from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.rpc.served_census import PoolEntry, entries_of_prompt, response_counts, served_client, stats_of
from rlep.services.pool.values import COVERAGE, PoolPlace, PoolStats, policies
from rlep.view import rollouts
from rlep.view.charts import Axis, Drawing, bar_chart
from rlep.view.pool_places import PoolPlaces, where
from rlep.view.run_files import RunPlace, or_note
from rlep.view.templating import rendered

SHOWN_QUESTIONS = 32
ANSWERS_A_QUESTION = 4
"""Responses that are read of each of them."""
ENTRIES = 64
ASKED = 128
"""Questions of a run's newest steps that are looked up in its pool."""
DRAWN_STEPS = 50
MOST_DRAWN = 20
ORIGINS = 50


@dataclass(frozen=True, slots=True)
class SomeQuestion:
    """A question of the pool and the first of its responses, by content id."""

    prompt_id: str
    responses: int
    """All that it has, quarantined ones too."""
    read: int
    answers: tuple[str | None, ...]
    """Different extracted answers among those that were read."""
    lengths: tuple[int, int]
    """Tokens of the shortest and the longest of them."""
    policies: tuple[str, ...]
    samples: tuple[str, ...]
    """Ids of the samples: command, step, question and number."""


@dataclass(frozen=True, slots=True)
class StepDraws:
    """Replays that the newest steps of a run drew."""

    steps: tuple[int, ...]
    replays: int
    distinct: int
    most: tuple[tuple[str, str, int, int], ...]
    """(prompt id, content id, times, newest step) of the responses drawn most often."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as its page shows it."""

    name: str
    place: str
    stats: PoolStats | None
    coverage: Sequence[tuple[str, int, int | None]]
    """(responses, questions of the pool that were counted, questions of the run's newest steps)."""
    questions: Sequence[SomeQuestion]
    notes: Sequence[str]
    chart: Drawing | None = None
    """The coverage."""
    policies: Sequence[tuple[str, str, int]] = ()
    """(name, steps, responses) of each policy."""


def pools(places: PoolPlaces) -> str:
    """The pools that were named."""
    return rendered("pools.html", places=places.listed())


def named_pool(places: PoolPlaces, number: int, name: str) -> str:
    """One of them."""
    view = _view(places.at(number, name), [])
    base = f"/pools/{number}/{name}"
    return rendered(
        "pool.html",
        run=None,
        base=base,
        views=[view],
        drawn=None,
        questions={},
        responses={},
        notes=[],
        origins=ORIGINS,
    )


def pool_of(run: RunPlace, places: PoolPlaces) -> str:
    """The pools of a run, and what its steps drew."""
    found, notes = places.of_run(run)
    steps = rollouts.steps_with(run, "rollouts")[:DRAWN_STEPS]
    drawn, damaged = rollouts.read_drawn(run, steps)
    asked, more = or_note(lambda: _asked(run, steps[0]) if steps else [])
    views = [_view(place, asked) for place in found]
    missing = [] if steps else ["rollouts/ has no files: what was drawn is not known"]
    questions, responses = rollouts.read_known(run)
    return rendered(
        "pool.html",
        run=run.name,
        base=f"/runs/{run.name}",
        views=views,
        drawn=drawn_of(steps, drawn),
        questions=questions,
        responses=responses,
        notes=[*notes, *damaged, *more, *missing],
        origins=ORIGINS,
    )


def named_prompt(places: PoolPlaces, number: int, name: str, prompt_id: str) -> str:
    """The responses of a named pool to a question."""
    place = places.at(number, name)
    held, notes = entries_of([place], prompt_id)
    return rendered("pool_prompt.html", number=number, pool=name, prompt=prompt_id, held=held, notes=notes)


def entries_of(places: Sequence[PoolPlace], prompt_id: str) -> tuple[list[tuple[str, list[PoolEntry], int]], list[str]]:
    """(pool, its first responses to a question, all of them) of each pool that answers, and notes on the others."""
    found, notes = [], []
    for place in places:

        def read(place: PoolPlace = place) -> list[tuple[str, list[PoolEntry], int]]:
            with served_client(place) as opened:
                return [(place.name, *entries_of_prompt(opened, prompt_id, ENTRIES))]

        entries, missing = or_note(read)
        found += entries
        notes += missing
    return found, notes


def drawn_of(steps: Sequence[int], replays: Sequence[tuple[int, str, str]]) -> StepDraws:
    """Counts over (step, prompt id, content id) of replays."""
    times = Counter((prompt_id, content_id) for _, prompt_id, content_id in replays)
    newest: dict[tuple[str, str], int] = {}
    for step, prompt_id, content_id in replays:
        newest[prompt_id, content_id] = max(step, newest.get((prompt_id, content_id), step))
    most = sorted(times, key=lambda drawn: (-times[drawn], drawn))[:MOST_DRAWN]
    return StepDraws(tuple(steps), len(replays), len(times), tuple((*draw, times[draw], newest[draw]) for draw in most))


def _asked(run: RunPlace, step: int) -> list[str]:
    """Questions of a step."""
    rows = rollouts.read_rows(run, ("rollouts", f"step-{step:06d}.parquet"), ("prompt_id",))
    return sorted({str(row["prompt_id"]) for row in rows})[:ASKED]


def _view(place: PoolPlace, asked: Sequence[str]) -> PoolView:
    def read() -> list[tuple[PoolStats, list[int], list[SomeQuestion]]]:
        with served_client(place) as opened:
            return [(stats_of(opened), response_counts(opened, asked), _some(opened))]

    found, notes = or_note(read)
    if not found:
        return PoolView(place.name, where(place), None, (), (), notes)
    stats, asked_counts, questions = found[0]
    least = {0: stats.questions} | dict(stats.questions_with)
    asked_least = {level: sum(count >= level for count in asked_counts) for level in (0, *COVERAGE)}
    rows = [
        (label, pool, run if asked else None)
        for (label, pool), (_, run) in zip(by_count(least), by_count(asked_least), strict=True)
    ]
    bars = [(label, float(pool), "c2" if at else "c1") for at, (label, pool, _) in enumerate(rows)]
    chart = bar_chart("Questions by responses", bars, Axis("responses of a question"), Axis("questions"))
    return PoolView(place.name, where(place), stats, rows, questions, [], chart, policies(stats.by_policy))


def by_count(at_least: Mapping[int, int]) -> list[tuple[str, int]]:
    """(responses, questions) from n → questions with at least n; the last has no upper end."""
    levels = [0, *COVERAGE]
    labels = [
        str(low) if low + 1 == high else f"{low} to {high - 1}" for low, high in zip(levels, COVERAGE, strict=False)
    ]
    counts = [at_least.get(low, 0) - at_least.get(high, 0) for low, high in zip(levels, COVERAGE, strict=False)]
    return [*zip(labels, counts, strict=True), (f"{COVERAGE[-1]} or more", at_least.get(COVERAGE[-1], 0))]


def _some(opened: PoolClient) -> list[SomeQuestion]:
    return [
        _question(prompt_id, *entries_of_prompt(opened, prompt_id, ANSWERS_A_QUESTION))
        for prompt_id in opened.prompt_page(SHOWN_QUESTIONS)
    ]


def _question(prompt_id: str, entries: Sequence[PoolEntry], total: int) -> SomeQuestion:
    read = [entry.trajectory for entry in entries if entry.trajectory is not None]
    lengths = [len(entry.tokens) for entry in read]
    return SomeQuestion(
        prompt_id,
        total,
        len(read),
        tuple(sorted({entry.verdict.extracted for entry in read}, key=str)),
        (min(lengths, default=0), max(lengths, default=0)),
        tuple(sorted({f"{entry.provenance.policy_digest}@{entry.provenance.policy_version}" for entry in read})),
        tuple(sorted({entry.sample_id for entry in read})),
    )
