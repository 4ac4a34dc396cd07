"""One question over the steps, the evaluations and the pool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlep.config.settings import as_override
from rlep.view import rollouts
from rlep.view.episode import episode_in
from rlep.view.pool_pages import entries_of
from rlep.view.pool_places import PoolPlaces
from rlep.view.run_files import RunPlace, list_of, read_json, section_of
from rlep.view.templating import rendered

MOST_WRITTEN = 20
"""Steps whose texts are shown."""
_ID = re.compile("[0-9a-f]{32}")


def prompt(place: RunPlace, prompt_id: str, places: PoolPlaces) -> str:
    """The groups, samples and stored responses of a question."""
    found, notes = rollouts.read_prompt(place, prompt_id)
    evaluated, asked, damaged = rollouts.read_correct(place, prompt_id)
    if not found and not evaluated:
        notes.append(f"no step and no evaluation among the newest {rollouts.MOST_STEPS} has this prompt")
    written, torn = rollouts.read_written(place, [step for step, _ in found], prompt_id, MOST_WRITTEN)
    groups = dict(found)
    pools, away = places.of_run(place)
    held, missing = entries_of(pools, prompt_id)
    drawn: dict[str, int] = {}
    for _, group in found:
        for row in group.replays:
            drawn[row["content_id"]] = drawn.get(row["content_id"], 0) + 1
    watched = watched_by(read_json(place, "config.json")[0])
    return rendered(
        "prompt.html",
        run=place.name,
        prompt=prompt_id,
        found=found,
        question=written[0][1]["question"] if written else asked,
        seen=written[0][1]["prompt"] if written else None,
        written=[(step, groups[step], row["text"], episode_in(row)) for step, row in written],
        watched=prompt_id in watched,
        to_watch=as_override("rollouts.watch", [*watched, prompt_id]) if found and _ID.fullmatch(prompt_id) else None,
        evaluated=evaluated,
        held=held,
        drawn=drawn,
        notes=[*notes, *torn, *damaged, *away, *missing],
    )


def watched_by(config: Mapping[str, Any]) -> list[str]:
    """``rollouts.watch`` of a run's configuration; what is no id of a prompt is left out."""
    names = list_of(section_of(config, "rollouts").get("watch"))
    return [name for name in names if isinstance(name, str) and _ID.fullmatch(name)]
