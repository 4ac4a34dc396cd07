"""Beginnings of environments, looked at before any actor starts: their tools, and what they tell of each question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from rlep.config.environment import EnvironmentConfig
from rlep.core.episodes import Observation, reset_seed
from rlep.core.errors import DataError
from rlep.core.plural import counted, named
from rlep.core.progress import StartPhase
from rlep.core.types import Prompt
from rlep.data.prompt_rows import PromptRow
from rlep.data.prompts import NAMED_CHARACTERS
from rlep.services.environment.local import local_environments

Schemas = Sequence[Mapping[str, object]]
AT_ONCE = 64
"""Environments of a worker process that have begun and not ended."""
NAMED = 3
"""Failures that are named."""


def tool_names(schemas: Schemas) -> list[str]:
    """Return the names of tools."""
    functions = [schema.get("function") for schema in schemas]
    return [str(function.get("name")) for function in functions if isinstance(function, dict)]


def tools_of(config: EnvironmentConfig) -> Schemas:
    """Return the tools of a config's environment. Raises ``ConfigError`` where it cannot be used."""

    async def look() -> Schemas:
        async with local_environments(config) as environments:
            return environments.tools

    return asyncio.run(look())


def told_texts(
    config: EnvironmentConfig, rows: Sequence[tuple[str, PromptRow]], phase: StartPhase | None = None
) -> list[str]:
    """Return the text of ``reset`` for each prompt id and row, empty where it returns none.

    ``phase`` shows how many have begun. Raises ``DataError`` where any fails.
    """

    async def look() -> list[Observation]:
        begun: dict[str, Observation] = {}
        async with local_environments(config) as environments:
            free = asyncio.Semaphore(AT_ONCE * config.workers)

            async def begin(prompt_id: str, row: PromptRow) -> tuple[str, Observation]:
                async with free:
                    seen = await environments.begin(prompt_id, row.columns, seed=reset_seed(prompt_id))
                    await environments.end(prompt_id)
                return prompt_id, seen

            begins = [asyncio.ensure_future(begin(*row)) for row in rows]
            try:
                for done in asyncio.as_completed(begins):
                    prompt_id, begun[prompt_id] = await done
                    if advance is not None:
                        advance(1)
            finally:
                for one in begins:
                    one.cancel()
        return [begun[prompt_id] for prompt_id, _ in rows]

    with phase("environments", len(rows), "questions") if phase is not None else nullcontext() as advance:
        seen = asyncio.run(look())
    failed = [(row, one) for (_, row), one in zip(rows, seen, strict=True) if one.failed]
    if failed:
        named = [f"  {row.place}: {one.status}: {one.reason}" for row, one in failed[:NAMED]]
        head = f"environment.factory = {config.factory}: reset fails for {len(failed):,} of {counted(len(rows), 'question')}"
        raise DataError("\n".join([head, *named]))
    return ["".join(one.texts) for one in seen]


def check_same_rows(train: Sequence[Prompt], held_out: Sequence[Prompt]) -> None:
    """Raise ``DataError`` where a question has one row in the training set and another in the held-out one.

    An episode's environment is found by its question. ``data_source`` may differ: it is the file's name where a row has none.
    """
    known = {prompt.id: prompt for prompt in train}
    for prompt in held_out:
        if (other := known.get(prompt.id)) is None or other.columns == prompt.columns:
            continue
        rows = [json.loads(one.columns) | {"data_source": ""} for one in (prompt, other)]
        if rows[0] != rows[1]:
            names = [name for name in rows[0] | rows[1] if rows[0].get(name) != rows[1].get(name)]
            raise DataError(
                f"the question {prompt.question[:NAMED_CHARACTERS]!r} is in data.evaluation and, with other values of "
                f"{named(names)}, in data.train: it would have two environments; leave it out of one of them"
            )
