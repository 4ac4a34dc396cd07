"""Live replay: a run's own verified successes come back in later steps.

    step k       rollout ─ verify ─ draw from V_k ─ mix ─ updates ─ publish ─► insert its successes, born in k

Step k sees, of each prompt, V_k: the first ``replay.per_question`` of its stored responses by (birth descending, content id
ascending) that were born before k and at most ``replay.max_age`` steps ago. Which those are is kept here and in every
checkpoint; the pool holds the records under their content ids and nothing else. So a draw is a pure function of checkpoint,
seed, step and prompt id, and neither the order of insertions nor repeated ones can change it. What a lost future inserted
is in no checkpoint: it is never drawn, and removed when the run is restored.

A response that has left V stays in the pool while a checkpoint may still need it ((``checkpoint.keep`` + 1) ·
``checkpoint.every`` steps: the newest may break off while it is written); until then the same tokens are not inserted again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlep.algorithms.live_draws import draw_ids, seen
from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, PoolError
from rlep.core.files import write_json
from rlep.core.plural import counted
from rlep.core.types import ALL, QUARANTINED, Trajectory
from rlep.driver.ports import ReplayPool, ReplaySource
from rlep.driver.step import StepOutcome
from rlep.driver.values import ScoredMiniBatch
from rlep.metrics.catalogue import MetricValue

FILE = "live.npz"
"""Of a checkpoint: what V holds, and what has left it."""
MARK = "live.json"
"""Of the run directory: the live pool of this name is this run's."""


class LiveReplay:
    """Replay from a run's own responses. One driver at a time writes its pool."""

    def __init__(self, config: Config, pool: ReplayPool, directory: Path, offline: ReplaySource | None = None) -> None:
        """``directory`` of the run; ``offline``: an experience pool that is drawn from as well."""
        self._rule, self._pool, self._mark, self._offline = config.replay, pool, directory / MARK, offline
        self._name, self._every = config.run.name, config.checkpoint.every
        self._horizon = (config.checkpoint.keep + 1) * self._every
        self._forget()

    def _forget(self) -> None:
        self._visible: dict[str, dict[str, int]] = {}
        """Prompt id → content id → birth."""
        self._left: dict[str, tuple[str, int]] = {}
        """Content id → (prompt id, step after whose updates it left V)."""

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """Draw from V, joined with the offline pool's responses by content id."""
        stored = await self._read_offline(prompt_ids, seed, step)
        candidates = {
            name: sorted(self._visible.get(name, {}).keys() | stored.get(name, {}).keys()) for name in prompt_ids
        }
        minimum, decay = self._rule.minimum, self._rule.age_decay
        chosen = draw_ids(candidates, count, minimum=minimum, seed=seed, step=step, births=self._visible, decay=decay)
        fetched = await self._fetch(chosen)
        return {
            prompt_id: [fetched.get(content_id) or stored[prompt_id][content_id] for content_id in ids]
            for prompt_id, ids in chosen.items()
        }

    def stored(self) -> dict[str, int]:
        """Return the live responses of each prompt that has ``replay.minimum`` of them."""
        return {prompt_id: len(ids) for prompt_id, ids in self._visible.items() if len(ids) >= self._rule.minimum}

    async def _read_offline(self, prompt_ids: Sequence[str], seed: int, step: int) -> dict[str, dict[str, Trajectory]]:
        """Return prompt id → content id → the offline pool's responses."""
        if self._offline is None:
            return {}
        held = await self._offline.sample(prompt_ids, ALL, seed=seed, step=step)
        return {prompt_id: {member.content_id: member for member in members} for prompt_id, members in held.items()}

    async def _fetch(self, chosen: Mapping[str, Sequence[str]]) -> dict[str, Trajectory]:
        """Return content id → trajectory with its birth, of those in V."""
        wanted = {
            prompt_id: live
            for prompt_id, ids in chosen.items()
            if (live := [content_id for content_id in ids if content_id in self._visible.get(prompt_id, {})])
        }
        if not wanted:
            return {}
        found = await self._pool.fetch(wanted)
        return {
            content_id: replace(member, birth=self._visible[prompt_id][content_id])
            for prompt_id, ids in wanted.items()
            for content_id, member in zip(ids, found[prompt_id], strict=True)
        }

    async def learn(self, outcome: StepOutcome, _: Mapping[str, MetricValue]) -> Mapping[str, MetricValue]:
        """Insert the successes of a step that is complete."""
        step = outcome.step.number
        inserted = await self._insert(step, successes(outcome.mini_batches))
        self._leave(step)
        if (step + 1) % self._every == 0:
            await self._trim(step + 1 - self._horizon)
        return {
            "live/inserted": inserted,
            "live/responses": sum(map(len, self._visible.values())),
            "live/questions": len(self.stored()),
        }

    async def _insert(self, step: int, born: Iterable[Trajectory]) -> int:
        new = {
            member.content_id: member
            for member in reversed([*born])  # of equal ones the first
            if member.content_id not in self._left and member.content_id not in self._visible.get(member.prompt_id, {})
        }
        report = await self._pool.add([*reversed(new.values())])
        for content_id, reason in report.refused:
            if not reason.startswith(QUARANTINED):
                raise PoolError(f"the live pool does not take response {content_id}: {reason}")
            del new[content_id]
        for content_id, member in new.items():
            self._visible.setdefault(member.prompt_id, {})[content_id] = step
        return len(new)

    def _leave(self, step: int) -> None:
        """Take out of V what step ``step + 1`` does not see."""
        rule = self._rule
        for prompt_id, births in self._visible.items():
            stays = seen(births, step + 1, per_question=rule.per_question, max_age=rule.max_age)
            for content_id in sorted(births.keys() - stays):
                self._left[content_id] = prompt_id, step
                del births[content_id]

    async def _trim(self, before: int) -> None:
        """Remove what left V before a step: no checkpoint that is kept needs it."""
        gone: dict[str, list[str]] = {}
        for content_id, (prompt_id, step) in [*self._left.items()]:
            if step < before:
                gone.setdefault(prompt_id, []).append(content_id)
                del self._left[content_id]
        await self._remove(gone)

    async def _remove(self, gone: Mapping[str, Sequence[str]]) -> None:
        await asyncio.gather(*(self._pool.remove(prompt_id, ids) for prompt_id, ids in gone.items()))

    def write(self, directory: Path) -> None:
        """Write what a checkpoint needs into its directory."""
        visible = [
            (prompt_id, content_id, birth)
            for prompt_id, births in self._visible.items()
            for content_id, birth in births.items()
        ]
        left = [(prompt_id, content_id, step) for content_id, (prompt_id, step) in self._left.items()]
        np.savez(
            directory / FILE,
            visible_ids=_pairs([names for *names, _ in visible]),
            visible_births=np.array([birth for *_, birth in visible], dtype=np.int64),
            left_ids=_pairs([names for *names, _ in left]),
            left_steps=np.array([step for *_, step in left], dtype=np.int64),
        )

    async def restore(self, directory: Path | None, *, accept: bool) -> None:
        """Go on from a checkpoint's directory, or from the beginning; removes what a lost future inserted.

        ``accept``: go on without the responses that the pool has lost.

        Raises:
            CheckpointError: the pool lacks responses of the checkpoint.
            PoolError: the pool holds another run's responses.
        """
        self._forget()
        if directory is not None:
            self._read(directory)
        held = {prompt_id: set(ids) for prompt_id, ids in (await self._pool.contents()).items()}
        if held and not self._is_ours(continued=directory is not None):
            raise PoolError(
                f"the live pool already holds responses of another run to {counted(len(held), 'question')}: choose another "
                "run.name, or go on in that run's directory"
            )
        lost = {
            content_id: prompt_id
            for prompt_id, births in self._visible.items()
            for content_id in births
            if content_id not in held.get(prompt_id, ())
        }
        if lost and not accept:
            raise CheckpointError(
                f"the live pool lacks {len(lost)} of the {sum(map(len, self._visible.values()))} responses that checkpoint "
                f'{directory} replays from; checkpoint.accept = ["pool"] goes on without them'
            )
        write_json(self._mark, {"replay": "live", "run": self._name})
        for content_id, prompt_id in lost.items():
            del self._visible[prompt_id][content_id]
        known = {prompt_id: {*births} for prompt_id, births in self._visible.items()}
        for content_id, (prompt_id, _) in self._left.items():
            known.setdefault(prompt_id, set()).add(content_id)
        future = {prompt_id: sorted(ids - known.get(prompt_id, set())) for prompt_id, ids in held.items()}
        await self._remove({prompt_id: ids for prompt_id, ids in future.items() if ids})

    def _is_ours(self, *, continued: bool) -> bool:
        """Tell whether the pool of this name is this run's, whose name may have changed since it was marked."""
        if not self._mark.exists():
            return continued
        try:
            return bool(json.loads(self._mark.read_text()).get("run", self._name) == self._name)
        except ValueError:  # an earlier version's, cut off by a kill
            return True

    def _read(self, directory: Path) -> None:
        try:
            with np.load(directory / FILE, allow_pickle=False) as file:
                for (prompt_id, content_id), birth in zip(
                    _texts(file["visible_ids"]), file["visible_births"], strict=True
                ):
                    self._visible.setdefault(prompt_id, {})[content_id] = int(birth)
                for (prompt_id, content_id), step in zip(_texts(file["left_ids"]), file["left_steps"], strict=True):
                    self._left[content_id] = prompt_id, int(step)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{directory / FILE} cannot be read: {error}") from error


def _pairs(names: Sequence[Sequence[Any]]) -> NDArray[np.bytes_]:
    """(prompt id, content id) as an array ``[N, 2]``."""
    return np.array(names, dtype=np.bytes_).reshape(-1, 2)


def _texts(ids: NDArray[np.bytes_]) -> list[Any]:
    texts: list[Any] = ids.astype(np.str_).tolist()
    return texts


def successes(trained: Sequence[ScoredMiniBatch]) -> list[Trajectory]:
    """The correct, finished fresh responses of a step, with the learner's log-probs at its start, float32."""
    found = []
    for ready in trained:
        ends = np.cumsum(ready.batch.sampled_lengths)
        members = [member for group in ready.groups for member in group.members]
        for member, replayed, end in zip(members, ready.batch.replayed, ends, strict=True):
            if not replayed and member.correct and member.finish_reason == "stop":
                logprobs = member.over_tokens(ready.current_logprobs[end - member.sampled_length : end])
                source = replace(member.provenance, logprobs_dtype="float32")
                found.append(replace(member, logprobs=logprobs, provenance=source, token_versions=None))
    return found
