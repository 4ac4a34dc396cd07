"""``rollouts/`` of a run directory: trajectories of each step, written by a thread while the next step runs.

``step-NNNNNN.parquet`` has a row for every trajectory, ``step-NNNNNN.tokens.parquet`` the texts, token ids and log-probs
of ``rollouts.groups`` groups, and of those whose prompts ``rollouts.watch`` names. A file that is late or cannot be written
is left out, with an event; training goes on.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rlep.config.schema import Config
from rlep.core.files import replace_with
from rlep.core.seeds import seed_for
from rlep.core.transcript import text_and_ends
from rlep.core.types import Float32Array, Group, Trajectory
from rlep.driver.context import Step
from rlep.driver.evaluate import Decode
from rlep.driver.step import StepOutcome
from rlep.metrics.catalogue import MetricValue
from rlep.metrics.logs import EventLog

if TYPE_CHECKING:
    import pyarrow as pa

LAST_FILE_S = 60.0
"""Longest wait, at the end of a run or before a step is repeated, for a file that is being written."""
GROUPS_A_ROW_GROUP = 16
_NAME = re.compile(r"\.?step-(\d{6,})(\.tokens)?\.parquet(\.part)?")


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One trajectory of a step; log-probs and gaps in nats."""

    group: int
    """Place of the group in the step."""
    member: int
    """Place in the group: fresh ones first, then replays."""
    prompt_id: str
    content_id: str
    replayed: bool
    status: str
    score: float | None
    """Partial credit, where the verifier gives any."""
    parts: str | None
    """Its named parts as a JSON object, where there are any."""
    extracted: str | None
    finish_reason: str
    tokens: int
    """Those that the policy sampled."""
    reward: float
    """After shaping."""
    advantage: float
    trained: bool
    """False: out of the loss (``mask_truncated``, ``drop_constant``)."""
    update: int
    """Number of the optimizer update in the step."""
    policy_version: int
    """Version that the step trains."""
    oldest_version: int
    """Oldest version that a token was sampled under; for replays that of their own run."""
    policy: str
    """Names the weights that sampled it."""
    logprob: float
    """Mean under the learner, before the step's updates."""
    sampler_logprob: float | None
    """Mean under the policy that sampled it; None where that is not known."""
    gap_mean: float | None
    """Mean of |learner − sampler| over its tokens."""
    gap_max: float | None
    verifier: str
    verifier_path: str
    verifier_s: float
    reason: str | None
    """Why it is not correct, where the verifier says so: the test that failed, or how the reward function crashed."""
    created: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenGroup:
    """A group as the files show it."""

    group: Group
    rows: tuple[RolloutRow, ...]
    logprobs: tuple[Float32Array, ...]
    """Of each member's tokens under the learner, ``[T]``; 0 where an environment wrote."""


class RolloutFiles:
    """Writes the files of one run; one step's at a time."""

    def __init__(self, config: Config, decode: Decode, events: EventLog) -> None:
        self._config, self._decode, self._events = config, decode, events
        self._directory = config.run.directory / "rollouts"
        self._writing: threading.Thread | None = None
        self._next: int | None = None
        """The step that follows the last one, unless the run is restored."""

    async def begin_step(self, step: Step) -> None:
        """Remove the files of a step that is done again, and of later ones."""
        if step.number != self._next:
            await self.finished()
            self._attempt(step.number, lambda: remove_from(self._directory, step.number))

    async def write_step(self, outcome: StepOutcome, _: Mapping[str, MetricValue]) -> Mapping[str, MetricValue]:
        """Begin to write the files of a step that is complete."""
        self._next = outcome.step.number + 1
        self._begin(outcome)
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.finished()

    async def finished(self) -> None:
        """Wait until no file is being written, ``LAST_FILE_S`` at most."""
        if self._writing is not None:
            await asyncio.to_thread(self._writing.join, LAST_FILE_S)

    def _begin(self, outcome: StepOutcome) -> None:
        step = outcome.step.number
        if self._writing is not None and self._writing.is_alive():
            self._events.log("rollouts_skipped", step, error="the files of an earlier step are still being written")
            return
        self._writing = threading.Thread(
            target=self._attempt, args=(step, lambda: self._write(outcome)), name="rollout-files", daemon=True
        )
        self._writing.start()

    def _attempt(self, step: int, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - no file is worth a run
            self._events.log("rollouts_skipped", step, error=f"{type(error).__name__}: {error}")

    def _write(self, outcome: StepOutcome) -> None:
        rule, step = self._config.rollouts, outcome.step.number
        groups = list(list_groups(outcome))
        self._directory.mkdir(exist_ok=True)
        write_tables(self._directory / f"step-{step:06d}.parquet", [rows_table(groups)])
        if chosen := choose_groups(groups, rule.groups, seed=self._config.run.seed, step=step, watch=rule.watch):
            parts = [chosen[at : at + GROUPS_A_ROW_GROUP] for at in range(0, len(chosen), GROUPS_A_ROW_GROUP)]
            path = self._directory / f"step-{step:06d}.tokens.parquet"
            write_tables(path, [tokens_table(part, self._decode) for part in parts])
            keep_newest(self._directory, int(rule.keep_gib * 2**30))


def list_groups(outcome: StepOutcome) -> Iterator[WrittenGroup]:
    """Yield the groups of a step in their order."""
    number = 0
    for update, ready in enumerate(outcome.mini_batches):
        logprobs = np.split(ready.current_logprobs, np.cumsum(ready.batch.sampled_lengths)[:-1])
        at = 0
        for group in ready.groups:
            parts = tuple(logprobs[at : at + len(group.members)])
            rows = tuple(
                _row(
                    trajectory,
                    part,
                    group=number,
                    member=member,
                    replayed=member >= len(group.fresh),
                    reward=float(ready.rewards.scores[at + member]),
                    advantage=float(ready.batch.advantages[at + member]),
                    trained=bool(ready.batch.trained[at + member]),
                    update=update,
                    policy_version=group.policy_version,
                )
                for member, (trajectory, part) in enumerate(zip(group.members, parts, strict=True))
            )
            spread = tuple(one.over_tokens(part) for one, part in zip(group.members, parts, strict=True))
            yield WrittenGroup(group, rows, spread)
            at, number = at + len(group.members), number + 1


def _row(trajectory: Trajectory, logprobs: Float32Array, **place: Any) -> RolloutRow:
    """Return the row of a trajectory with the learner's ``logprobs`` ``[R]``; ``place``: further fields, from its step."""
    verdict, at = trajectory.verdict, trajectory.at_sampled
    behaviour = None if trajectory.logprobs is None else at(trajectory.logprobs)
    versions = None if trajectory.token_versions is None else at(trajectory.token_versions)
    gaps = None if behaviour is None else np.abs(logprobs - behaviour)
    return RolloutRow(
        prompt_id=trajectory.prompt_id,
        content_id=trajectory.content_id,
        status=verdict.status,
        score=verdict.score,
        parts=json.dumps(dict(verdict.parts)) if verdict.parts else None,
        extracted=verdict.extracted,
        finish_reason=trajectory.finish_reason,
        tokens=trajectory.sampled_length,
        oldest_version=trajectory.provenance.policy_version if versions is None else int(versions.min()),
        policy=trajectory.provenance.policy_digest,
        logprob=float(logprobs.mean()),
        sampler_logprob=None if behaviour is None else float(behaviour.mean()),
        gap_mean=None if gaps is None else float(gaps.mean()),
        gap_max=None if gaps is None else float(gaps.max()),
        verifier=verdict.verifier,
        verifier_path=verdict.path,
        verifier_s=verdict.seconds,
        reason=verdict.reason or None,
        created=trajectory.created_at,
        **place,
    )


def choose_groups(
    groups: Sequence[WrittenGroup], count: int, *, seed: int, step: int, watch: Sequence[str] = ()
) -> list[WrittenGroup]:
    """Choose at most ``count`` groups and those of the prompts ``watch``, in the step's order.

    Of ``count`` half is drawn by prompt, half are extremes of four kinds in turn; watched prompts change neither.
    """
    drawn = sorted(range(len(groups)), key=lambda at: seed_for(seed, "rollouts", step, groups[at].group.prompt.id))
    chosen = dict.fromkeys(drawn[: count - count // 2])
    ranked = [sorted(range(len(groups)), key=lambda at: -measure(groups[at])) for measure in _EXTREMES]
    turns = [at for place in zip(*ranked, strict=True) for at in place]
    for at in turns:
        if len(chosen) >= count:
            break
        chosen.setdefault(at)
    watched = [at for at, each in enumerate(groups) if each.group.prompt.id in watch]
    return [groups[at] for at in sorted({*chosen, *watched})]


def _longest(written: WrittenGroup) -> float:
    return max(row.tokens for row in written.rows)


def _widest_gap(written: WrittenGroup) -> float:
    return max((row.gap_max for row in written.rows if row.gap_max is not None), default=0.0)


def _rescued(written: WrittenGroup) -> float:
    return float(written.group.rescued)


def _all_wrong(written: WrittenGroup) -> float:
    return float(not any(member.correct for member in written.group.members))


_EXTREMES = (_longest, _widest_gap, _rescued, _all_wrong)


def rows_table(groups: Sequence[WrittenGroup]) -> pa.Table:
    """Return a table with a row for each trajectory."""
    import pyarrow as pa

    rows = [row for written in groups for row in written.rows]
    kinds = {"int": pa.int32(), "str": pa.string(), "bool": pa.bool_(), "float": pa.float32()}
    columns: dict[str, Any] = {}
    for field in fields(RolloutRow):
        kind = pa.float64() if field.name == "created" else kinds[str(field.type).split(" ")[0]]
        columns[field.name] = pa.array([getattr(row, field.name) for row in rows], kind)
    return pa.table(columns)


def tokens_table(groups: Sequence[WrittenGroup], decode: Decode) -> pa.Table:
    """Return a table with a row for each trajectory of these groups: question, text, token ids and log-probs.

    Of an episode also ``sampled``, and the ``ends`` of its parts in the text, in characters (``core.transcript.parts_of``).
    """
    import pyarrow as pa

    held = [
        (written.group.prompt, row, member, logprobs)
        for written in groups
        for row, member, logprobs in zip(written.rows, written.group.members, written.logprobs, strict=True)
    ]
    texts = [text_and_ends(member.tokens, member.sampled, decode) for _, _, member, _ in held]
    half = pa.list_(pa.float16())
    return pa.table(
        {
            "group": pa.array([row.group for _, row, _, _ in held], pa.int32()),
            "member": pa.array([row.member for _, row, _, _ in held], pa.int32()),
            "prompt_id": pa.array([prompt.id for prompt, _, _, _ in held], pa.string()),
            "data_source": pa.array([prompt.data_source for prompt, _, _, _ in held], pa.string()),
            "question": pa.array([prompt.question for prompt, _, _, _ in held], pa.string()),
            "reference": pa.array([prompt.reference for prompt, _, _, _ in held], pa.string()),
            "prompt": pa.array([decode(prompt.tokens) for prompt, _, _, _ in held], pa.string()),
            "text": pa.array([text for text, _ in texts], pa.string()),
            "token_ids": pa.array([member.tokens for _, _, member, _ in held], pa.list_(pa.int32())),
            "logprobs": pa.array([_half(logprobs) for _, _, _, logprobs in held], half),
            "sampler_logprobs": pa.array([_half(member.logprobs) for _, _, member, _ in held], half),
            "sampled": pa.array([member.sampled for _, _, member, _ in held], pa.list_(pa.bool_())),
            "ends": pa.array([ends for _, ends in texts], pa.list_(pa.int32())),
        }
    )


def _half(logprobs: Float32Array | None) -> Any:
    return None if logprobs is None else np.clip(logprobs, -65504, 0).astype(np.float16)


def write_tables(path: Path, parts: Sequence[pa.Table]) -> None:
    """One row group for each part; the file appears whole."""
    import pyarrow.parquet as pq

    with (
        replace_with(path) as part,
        pq.ParquetWriter(part, parts[0].schema, compression="zstd", write_page_checksum=True) as file,
    ):
        for table in parts:
            file.write_table(table)


def remove_from(directory: Path, step: int) -> None:
    """Remove the files of step ``step`` and later."""
    for path in directory.glob("*step-*"):
        if (name := _NAME.fullmatch(path.name)) and int(name[1]) >= step:
            path.unlink()


def keep_newest(directory: Path, most: int) -> None:
    """Remove the oldest token files until all take at most ``most`` bytes."""
    held = 0
    for path in sorted(directory.glob("step-*.tokens.parquet"), reverse=True):
        held += path.stat().st_size
        if held > most:
            path.unlink()
