"""One question over the steps, the evaluations and the pool."""

from __future__ import annotations

from rlep.console import run_tables
from rlep.console.pool_pages import entries_of
from rlep.console.pool_places import PoolPlaces
from rlep.console.run_files import RunPlace, or_note
from rlep.console.templates_of import rendered


def prompt(place: RunPlace, prompt_id: str, places: PoolPlaces) -> str:
    """The groups, samples and stored responses of a question."""
    found, notes = run_tables.read_prompt(place, prompt_id)
    if not found:
        notes.append(f"no step among the newest {run_tables.MOST_STEPS} has this prompt")
    question = None
    for number, one in found:
        texts, _ = or_note(lambda number=number, one=one: run_tables.read_texts(place, number, one.number))  # type: ignore[misc]
        if texts:
            question = texts[0]["question"]
            break
    evaluated, damaged = run_tables.read_correct(place, prompt_id)
    pools, away = places.of_run(place)
    held, missing = entries_of(pools, prompt_id)
    drawn: dict[str, int] = {}
    for _, group in found:
        for row in group.replays:
            drawn[row["content_id"]] = drawn.get(row["content_id"], 0) + 1
    return rendered(
        "prompt.html",
        run=place.name,
        prompt=prompt_id,
        found=found,
        question=question,
        evaluated=evaluated,
        held=held,
        drawn=drawn,
        notes=[*notes, *damaged, *away, *missing],
    )
