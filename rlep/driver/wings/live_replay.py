"""Live replay: a run's own verified successes come back in later steps.

    step k       rollout ─ verify ─ draw from V_k ─ mix ─ updates ─ publish ─► insert its successes, born in k

Step k sees, of each prompt, V_k: the first ``replay.per_question`` of its stored responses by (birth descending, content id
ascending) that were born before k and at most ``replay.max_age`` steps ago. Which those are is kept here and in every
checkpoint; the pool holds the records under their content ids and nothing else. So a draw is a pure function of checkpoint,
seed, step and prompt id, and neither the order of insertions nor repeated ones can change it. What a lost future inserted
is in no checkpoint: it is never drawn, and removed when the run is restored.

A response that has left V stays in the pool while a checkpoint may still need it (``checkpoint.keep`` · ``checkpoint.every``
steps); until then the same tokens are not inserted again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlep.algorithms.selection import draw_aged, draw_questions, draw_uniform
from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, PoolError
from rlep.core.plural import counted
from rlep.core.types import Trajectory
from rlep.driver.ports import LivePool, ReplaySource
from rlep.driver.replays import EVERY
from rlep.driver.step_values import ScoredMiniBatch, Visit
from rlep.metrics.catalogue import MetricValue

FILE = "live.npz"
"""Of a checkpoint: what V holds, what has left it, and the questions' counters."""
MARK = "live.json"
"""Of the run directory: the live pool is this run's."""


class LiveReplay:
    """The ``Experience`` port. One driver at a time writes its pool."""

    def __init__(self, config: Config, pool: LivePool, directory: Path, offline: ReplaySource | None = None) -> None:
        """``directory`` of the run; ``offline``: an experience pool that is drawn from as well."""
        self._rule, self._pool, self._mark, self._offline = config.replay, pool, directory / MARK, offline
        self._fresh, self._seed = config.rollout.fresh, config.run.seed
        self._every, self._horizon = config.checkpoint.every, config.checkpoint.keep * config.checkpoint.every
        self._forget()

    def _forget(self) -> None:
        self._visible: dict[str, dict[str, int]] = {}
        """Prompt id → content id → birth."""
        self._left: dict[str, tuple[str, int]] = {}
        """Content id → (prompt id, step after whose updates it left V)."""
        self._solved: dict[str, int] = {}
        """Prompt id → its latest visits in a row with nothing but correct responses."""
        self._successes: dict[str, int] = {}
        """Prompt id → correct ones of G responses at its latest visit; rounded where replays took the place of some."""
        self._asked: frozenset[str] | None = None
        """The prompts that get replays in this step; None: all."""
        self._started = not self._rule.start_accuracy

    async def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int
    ) -> Mapping[str, Sequence[Trajectory]]:
        """See ``ReplaySource``: of V, joined with the offline pool's responses by content id."""
        if not self._started:
            return {}
        asked = prompt_ids if self._asked is None else [one for one in prompt_ids if one in self._asked]
        drawn_from = [prompt_id for prompt_id in asked if not self._retired(prompt_id)]
        stored = await self._stored(drawn_from, seed, step)
        candidates = [sorted(self._visible.get(one, {}).keys() | stored.get(one, {}).keys()) for one in drawn_from]
        counts = [len(ids) if len(ids) >= self._rule.minimum else 0 for ids in candidates]
        if self._rule.age_decay:
            chosen = {
                prompt_id: self._drawn_by_age(prompt_id, ids[:enough], count, seed, step)
                for prompt_id, ids, enough in zip(drawn_from, candidates, counts, strict=True)
            }
        else:
            picks, offsets = draw_uniform(drawn_from, counts, count, seed=seed, step=step)
            chosen = {
                prompt_id: [ids[pick] for pick in picks[offsets[at] : offsets[at + 1]]]
                for at, (prompt_id, ids) in enumerate(zip(drawn_from, candidates, strict=True))
            }
        fetched = await self._fetched(chosen)
        return {
            prompt_id: [fetched.get(one) or stored[prompt_id][one] for one in ids] for prompt_id, ids in chosen.items()
        }

    def _drawn_by_age(self, prompt_id: str, ids: Sequence[str], count: int, seed: int, step: int) -> list[str]:
        ages = [step - self._visible[prompt_id][one] for one in ids]
        picks = draw_aged(prompt_id, ages, count, decay=self._rule.age_decay, seed=seed, step=step)
        return [ids[pick] for pick in picks]

    def questions(self, step: int, count: int, beside: Collection[str]) -> Sequence[str]:
        """See ``Experience``: those with enough responses, by their successes at the latest visit."""
        known = {
            prompt_id: self._successes[prompt_id]
            for prompt_id, births in self._visible.items()
            if self._started
            and len(births) >= self._rule.minimum
            and prompt_id not in beside
            and not self._retired(prompt_id)
        }
        rule = self._rule
        drawn = draw_questions(
            known, count, of=self._fresh, mean=rule.bucket_mean, std=rule.bucket_std, seed=self._seed, step=step
        )
        self._asked = frozenset(drawn)
        return drawn

    async def _stored(self, prompt_ids: Sequence[str], seed: int, step: int) -> dict[str, dict[str, Trajectory]]:
        """Prompt id → content id → the offline pool's responses."""
        if self._offline is None:
            return {}
        held = await self._offline.sample(prompt_ids, EVERY, seed=seed, step=step)
        return {prompt_id: {member.content_id: member for member in members} for prompt_id, members in held.items()}

    async def _fetched(self, chosen: Mapping[str, Sequence[str]]) -> dict[str, Trajectory]:
        """Content id → trajectory with its birth, of those in V."""
        wanted = {
            prompt_id: live
            for prompt_id, ids in chosen.items()
            if (live := [one for one in ids if one in self._visible.get(prompt_id, {})])
        }
        if not wanted:
            return {}
        found = await self._pool.fetch(wanted)
        return {
            one: replace(member, metadata={**member.metadata, "birth": str(self._visible[prompt_id][one])})
            for prompt_id, ids in wanted.items()
            for one, member in zip(ids, found[prompt_id], strict=True)
        }

    async def learn(
        self, step: int, trained: Sequence[ScoredMiniBatch], visits: Sequence[Visit]
    ) -> dict[str, MetricValue]:
        """Insert the successes of step ``step``, which is complete, and count what it says of its questions."""
        inserted = await self._insert(step, successes(trained))
        for one in visits:
            whole = one.successes == one.responses
            self._solved[one.prompt_id] = self._solved.get(one.prompt_id, 0) + 1 if whole else 0
            self._successes[one.prompt_id] = int(self._fresh * one.successes / one.responses + 0.5)
        correct, responses = sum(one.successes for one in visits), sum(one.responses for one in visits)
        self._started = self._started or correct >= self._rule.start_accuracy * responses > 0
        self._leave(step)
        if (step + 1) % self._every == 0:
            await self._trim(step + 1 - self._horizon)
        return {
            "live/inserted": inserted,
            "live/responses": sum(map(len, self._visible.values())),
            "live/questions": sum(len(ids) >= self._rule.minimum for ids in self._visible.values()),
            "live/retired": sum(map(self._retired, self._solved)),
        }

    async def _insert(self, step: int, born: Iterable[Trajectory]) -> int:
        new = {
            one.content_id: one
            for one in reversed([*born])  # of equal ones the first
            if one.content_id not in self._left and one.content_id not in self._visible.get(one.prompt_id, {})
        }
        report = await self._pool.add([*reversed(new.values())])
        for content_id, reason in report.refused:
            if "quarantined" not in reason:
                raise PoolError(f"the live pool does not take response {content_id}: {reason}")
            del new[content_id]
        for content_id, member in new.items():
            self._visible.setdefault(member.prompt_id, {})[content_id] = step
        return len(new)

    def _leave(self, step: int) -> None:
        """Take out of V what step ``step + 1`` does not see."""
        oldest = step + 1 - self._rule.max_age if self._rule.max_age else 0
        for prompt_id, births in self._visible.items():
            if len(births) <= self._rule.per_question and min(births.values(), default=step) >= oldest:
                continue
            newest = sorted(births, key=lambda one: (-births[one], one))
            for at, one in enumerate(newest):
                if at >= self._rule.per_question or births[one] < oldest:
                    self._left[one] = prompt_id, step
                    del births[one]

    async def _trim(self, before: int) -> None:
        """Remove what left V before a step: no checkpoint that is kept needs it."""
        gone: dict[str, list[str]] = {}
        for content_id, (prompt_id, step) in [*self._left.items()]:
            if step < before:
                gone.setdefault(prompt_id, []).append(content_id)
                del self._left[content_id]
        await self._pool.remove(gone)

    def _retired(self, prompt_id: str) -> bool:
        return 0 < self._rule.retire_after <= self._solved.get(prompt_id, 0)

    def write(self, directory: Path) -> None:
        """Write what a checkpoint needs into its directory."""
        visible = [
            (prompt_id, one, birth) for prompt_id, births in self._visible.items() for one, birth in births.items()
        ]
        left = [(prompt_id, one, step) for one, (prompt_id, step) in self._left.items()]
        questions = [(prompt_id, visits, self._successes[prompt_id]) for prompt_id, visits in self._solved.items()]
        np.savez(
            directory / FILE,
            visible_ids=np.array([(prompt_id, one) for prompt_id, one, _ in visible], dtype=np.bytes_).reshape(-1, 2),
            visible_births=np.array([birth for *_, birth in visible], dtype=np.int64),
            left_ids=np.array([(prompt_id, one) for prompt_id, one, _ in left], dtype=np.bytes_).reshape(-1, 2),
            left_steps=np.array([step for *_, step in left], dtype=np.int64),
            question_ids=np.array([prompt_id for prompt_id, *_ in questions], dtype=np.bytes_),
            question_visits=np.array([visits for _, visits, _ in questions], dtype=np.int64),
            question_successes=np.array([successes for *_, successes in questions], dtype=np.int64),
            started=np.array(self._started),
        )

    async def restore(self, directory: Path | None, *, accept: bool) -> None:
        """Go on from a checkpoint's directory, or from the beginning; removes what a lost future inserted.

        ``accept``: go on without the responses that the pool has lost.

        Raises:
            CheckpointError: the pool lacks responses of the checkpoint.
            PoolError: at the beginning the pool holds another run's responses.
        """
        self._forget()
        if directory is not None:
            self._read(directory)
        held = {prompt_id: set(ids) for prompt_id, ids in (await self._pool.contents()).items()}
        if directory is None and held and not self._mark.exists():
            raise PoolError(
                f"the live pool already holds responses of another run to {counted(len(held), 'question')}: choose another "
                "run.name, or go on in that run's directory"
            )
        self._mark.write_text(json.dumps({"replay": "live"}) + "\n")
        lost = {
            one: prompt_id
            for prompt_id, births in self._visible.items()
            for one in births
            if one not in held.get(prompt_id, ())
        }
        if lost and not accept:
            raise CheckpointError(
                f"the live pool lacks {len(lost)} of the {sum(map(len, self._visible.values()))} responses that checkpoint "
                f'{directory} replays from; checkpoint.accept = ["pool"] goes on without them'
            )
        for one, prompt_id in lost.items():
            del self._visible[prompt_id][one]
        known = {prompt_id: {*births} for prompt_id, births in self._visible.items()}
        for one, (prompt_id, _) in self._left.items():
            known.setdefault(prompt_id, set()).add(one)
        future = {prompt_id: sorted(ids - known.get(prompt_id, set())) for prompt_id, ids in held.items()}
        await self._pool.remove({prompt_id: ids for prompt_id, ids in future.items() if ids})

    def _read(self, directory: Path) -> None:
        try:
            with np.load(directory / FILE, allow_pickle=False) as file:
                for (prompt_id, one), birth in zip(_texts(file["visible_ids"]), file["visible_births"], strict=True):
                    self._visible.setdefault(prompt_id, {})[one] = int(birth)
                for (prompt_id, one), step in zip(_texts(file["left_ids"]), file["left_steps"], strict=True):
                    self._left[one] = prompt_id, int(step)
                counters = file["question_visits"], file["question_successes"]
                for prompt_id, visits, correct in zip(_texts(file["question_ids"]), *counters, strict=True):
                    self._solved[prompt_id], self._successes[prompt_id] = int(visits), int(correct)
                self._started = bool(file["started"])
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{directory / FILE} cannot be read: {error}") from error


def _texts(ids: NDArray[np.bytes_]) -> list[Any]:
    texts: list[Any] = ids.astype(np.str_).tolist()
    return texts


def successes(trained: Sequence[ScoredMiniBatch]) -> list[Trajectory]:
    """The correct, finished fresh responses of a step, with the learner's log-probs at its start, float32."""
    found = []
    for one in trained:
        ends = np.cumsum(one.batch.response_lengths)
        members = [member for group in one.groups for member in group.members]
        for member, replayed, end in zip(members, one.batch.replayed, ends, strict=True):
            if not replayed and member.correct and member.finish_reason == "stop":
                logprobs = one.current_logprobs[end - len(member.tokens) : end]
                source = replace(member.provenance, logprobs_dtype="float32")
                found.append(replace(member, logprobs=logprobs, provenance=source, token_versions=None))
    return found
