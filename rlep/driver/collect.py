"""Experience collection: the policy generates many responses to every question; those admitted go into the pool."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlep.algorithms.admission import Admission, Coverage, Refusal, admit
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, PoolError
from rlep.core.files import write_json
from rlep.core.jsonl import JsonLines, read_lines
from rlep.core.plural import counted
from rlep.core.types import OVER_CAP, QUARANTINED, Prompt, Trajectory
from rlep.driver.clock import Clock
from rlep.driver.context import Run
from rlep.driver.ports import ReplayPool, RolloutBars
from rlep.driver.rollout import bars, requests_for, verify_rollout
from rlep.driver.run_directory import RunDirectory
from rlep.driver.tasks import together

CHUNK = 64
"""Questions in one wave; two waves run at once, so that generators do not idle at a wave's end."""
LEDGER, SUMMARY = "collection.jsonl", "collection.json"


@dataclass(frozen=True, slots=True)
class Collected:
    """A finished collection."""

    coverage: Coverage
    pool_digest: str
    candidates: int
    correct: int


def admission_of(config: Config) -> Admission:
    """Return the conditions under which a response is collected. Raises ``ConfigError`` where none could meet them."""
    least, most = config.replay.minimum, config.collection.cap
    if most < least:
        raise ConfigError(
            f"collection.cap = {most} keeps fewer responses of a question than replay.minimum = {least} asks for"
        )
    return Admission(config.rollout.max_tokens, least, most)


class Collector:
    """One collection over an open run directory; continued where it stopped, question by question."""

    def __init__(
        self,
        run: Run,
        pool: ReplayPool,
        store: RunDirectory,
        prompts: Sequence[Prompt],
        failures: ReplayPool | None = None,
    ) -> None:
        """``failures`` takes complete but wrong responses, at most ``collection.failed`` a question."""
        self._run, self._pool, self._store, self._failures = run, pool, store, failures
        self._ledger = JsonLines(store.path / LEDGER)
        self._done: dict[str, dict[str, Any]] = {str(line["prompt_id"]): line for line in read_lines(self._ledger.path)}
        self._prompts = prompts
        self._begun = time.monotonic() - max((float(line["wall_s"]) for line in self._done.values()), default=0.0)
        config = run.config
        self._admission = admission_of(config)
        self._failing = Admission(config.rollout.max_tokens, 1, config.collection.failed or None, failed=True)

    async def run(self) -> Collected:
        """Sample every question that has no line yet; returns and writes (``collection.json``) the pool's coverage."""
        left = [prompt for prompt in self._prompts if prompt.id not in self._done]
        if len(left) < len(self._prompts):
            self._run.progress.note(f"collected before: {counted(len(self._prompts) - len(left), 'question')}")
        samples = len(left) * self._run.config.collection.samples
        with self._ledger, bars(self._run.progress, samples, "collect") as shown:
            try:
                await self._waves(left, shown)
            except asyncio.CancelledError:
                done = sum(prompt.id in self._done for prompt in self._prompts)
                self._run.progress.note(
                    f"stopped: the same command continues the collection after {done} of {len(self._prompts)} questions"
                )
                raise
        return await self._finish(asked=len(left))

    async def _waves(self, prompts: Sequence[Prompt], shown: RolloutBars) -> None:
        free = asyncio.Semaphore(2)
        async with together() as group:
            for start in range(0, len(prompts), CHUNK):
                await free.acquire()
                wave = group.create_task(self._wave(prompts[start : start + CHUNK], shown))
                wave.add_done_callback(lambda _: free.release())

    async def _wave(self, prompts: Sequence[Prompt], shown: RolloutBars) -> None:
        rule = self._run.config.collection
        sampling = self._run.config.sampling(rule)
        requests = requests_for(
            prompts, rule.samples, label="collect", seed=self._run.config.run.seed, address=("collect",)
        )
        before = await self._pool.contents([prompt.id for prompt in prompts])
        admitted: dict[str, tuple[tuple[Trajectory, ...], dict[str, Any]]] = {}
        failed: list[Trajectory] = []
        async with aclosing(
            verify_rollout(self._run, prompts, requests, sampling, bars=shown, clock=Clock())
        ) as graded:
            async for prompt, members in graded:
                # Those that an interrupted attempt of this wave has stored are admitted again, and are duplicates there.
                others = frozenset(before.get(prompt.id, ())).difference(one.content_id for one in members)
                accepted, coverage = admit([prompt.id], members, self._admission, known={prompt.id: others})
                if self._failures is not None:
                    failed += admit([prompt.id], [m for m in members if not m.correct], self._failing)[0]
                admitted[prompt.id] = (
                    accepted,
                    {
                        "prompt_id": prompt.id,
                        "candidates": len(members),
                        "generated_tokens": sum(len(prompt.tokens) + len(member.tokens) for member in members),
                        "correct": sum(member.correct for member in members),
                        "admitted": len(accepted),
                        "others": len(others),
                        "refused": dict(coverage.refused),
                    },
                )
        refused = await _store(self._pool, [member for accepted, _ in admitted.values() for member in accepted])
        if self._failures is not None:
            await _store(self._failures, failed)
        for prompt_id, (accepted, line) in admitted.items():  # only now: a question asked again adds what is missing
            reasons = Counter(refused[one.content_id] for one in accepted if one.content_id in refused)
            line["admitted"] -= reasons.total()
            line["refused"] = dict(Counter(line["refused"]) + reasons)
            line["wall_s"] = round(time.monotonic() - self._begun, 3)
            self._ledger.append(line)
            self._done[prompt_id] = line
        self._run.progress.note(self._so_far())

    def _so_far(self) -> str:
        asked = [line for prompt in self._prompts if (line := self._done.get(prompt.id)) is not None]
        correct, candidates = (sum(line[key] for line in asked) for key in ("correct", "candidates"))
        covered = sum(line["admitted"] + line.get("others", 0) > 0 for line in asked)
        return (
            f"question {len(asked)}/{len(self._prompts)}: {100 * correct / candidates:.1f} % of {candidates} responses "
            f"correct, {counted(covered, 'question')} covered"
        )

    async def _finish(self, *, asked: int) -> Collected:
        collected = _sum_lines(list(self._done.values()), await self._pool.digest())
        wall_s = max((float(line["wall_s"]) for line in self._done.values()), default=0.0)
        tokens = sum(int(line.get("generated_tokens", 0)) for line in self._done.values())  # none in older lines
        summary = as_json(collected, self._run.config.replay.minimum) | {"wall_s": wall_s, "generated_tokens": tokens}
        new = asked or not (self._store.path / SUMMARY).exists()
        write_json(self._store.path / SUMMARY, summary)
        if new:
            coverage = collected.coverage
            self._store.events.log("collection_finished", questions=coverage.questions, admitted=coverage.accepted)
        return collected


def collected_before(directory: Path, prompts: Sequence[Prompt]) -> Collected | None:
    """Return the collection that a run directory holds, where each of ``prompts`` has its line and the summary is written."""
    if not (directory / LEDGER).is_file() or not (directory / SUMMARY).is_file():
        return None
    lines = {str(line["prompt_id"]): line for line in read_lines(directory / LEDGER)}
    if any(prompt.id not in lines for prompt in prompts):
        return None
    try:
        digest = str(json.loads((directory / SUMMARY).read_text())["pool_digest"])
    except (ValueError, KeyError, TypeError):
        return None  # damaged: to be written again
    return _sum_lines(list(lines.values()), digest)


def _sum_lines(lines: Sequence[Mapping[str, Any]], pool_digest: str) -> Collected:
    """Sum a ledger's lines."""
    answers = Counter(int(line["admitted"]) + int(line.get("others", 0)) for line in lines)
    refused: Counter[Refusal] = Counter()
    for line in lines:
        refused.update(line["refused"])
    return Collected(
        Coverage(dict(answers), dict(refused), sum(int(line["admitted"]) for line in lines)),
        pool_digest,
        candidates=sum(line["candidates"] for line in lines),
        correct=sum(line["correct"] for line in lines),
    )


async def _store(pool: ReplayPool, trajectories: Sequence[Trajectory]) -> dict[str, Refusal]:
    """Add them; returns content id → reason of those that the pool has no place for, e.g. as another collection filled it."""
    report = await pool.add(trajectories)
    refused: dict[str, Refusal] = {}
    for content_id, reason in report.refused:
        if reason.startswith(QUARANTINED):
            refused[content_id] = "quarantined"
        elif reason.startswith(OVER_CAP):
            refused[content_id] = "over_cap"
        else:
            raise PoolError(f"the pool refused {len(report.refused)} admitted answers, first: {report.refused[0]}")
    return refused


def as_json(collected: Collected, minimum: int) -> dict[str, object]:
    """Return the content of ``collection.json``."""
    coverage = collected.coverage
    return {
        "questions": coverage.questions,
        "candidates": collected.candidates,
        "correct": collected.correct,
        "admitted": coverage.accepted,
        "covered": coverage.covered,
        "eligible": sum(questions for count, questions in coverage.answers.items() if count >= minimum),
        "minimum": minimum,
        "buckets": coverage.buckets(),
        "answers_per_question": [coverage.answers.get(n, 0) for n in range(max(coverage.answers, default=0) + 1)],
        "refused": dict(coverage.refused),
        "pool_digest": collected.pool_digest,
    }
