"""Learner ranks: each FSDP2 rank in its own actor, used as one learner that fails as one."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

from rlep.actors.cluster import Cluster, call
from rlep.actors.colocation import Colocated
from rlep.actors.learner_actor import LearnerActor, Probes
from rlep.actors.placement import BundleSlot
from rlep.actors.replicas import ActorStatus, RoleStatus, State
from rlep.actors.supervised import close_actor, watch_call
from rlep.config.roles import ActorConfig
from rlep.config.schema import Config
from rlep.core.errors import ActorLost, DeadlineExceeded, LearnerLost, RlepError, first_line
from rlep.core.types import Float32Array, SequenceBatch, UpdateOutcome
from rlep.core.waiting import until
from rlep.engines.weights.weight_update import (
    BroadcastGroup,
    GroupBackend,
    SharedMemoryWeights,
    WeightDtype,
    WeightUpdate,
)

WRITTEN_POLL_S = 0.2
"""Seconds between two questions to the ranks whether a checkpoint is complete."""

SETTLE_S = 5.0
"""Once one rank has failed, time for the others to fail as well: one that does not is the one they waited for."""


class _Failure(NamedTuple):
    """One failure of the learner."""

    rank: int
    """First rank that raised an error."""
    error: str
    """Its type and message; empty where a rank died or was too late, which says nothing about the next time."""
    rollout: int
    """The last one that was scored or trained on before."""
    times: int
    """Failures in a row at that rollout with that error."""


class Learners:
    """All ranks behind the driver's ``Learner`` port."""

    def __init__(
        self,
        cluster: Cluster,
        config: Config,
        models: Sequence[Path],
        *,
        shared: Colocated | None = None,
    ) -> None:
        """``models``: directories of ``Config.models``. ``shared``: where the ranks share their devices with generators."""
        self._cluster, self._config, self._run, self._models = cluster, config.learner, config, models
        self._shared = shared
        self._asleep = False
        self._ranks: list[ActorHandle[Any]] = []
        self._nodes: list[str] = []
        """Ray's id of each rank's node."""
        self._restarts_left = config.learner.restarts
        self._rollout = 0
        """The last one that was scored or trained on."""
        self._failure = _Failure(0, "", 0, 0)
        self._lost = ""
        """Last failure, in one line."""
        self._collective = asyncio.Lock()
        self._numbers = itertools.count()
        """Numbers of the calls, each of which is carried out once."""

    async def start(self) -> None:
        """Place and start all ranks.

        Raises ``PlacementError``, ``ConfigError``, ``ModelError``, ``OutOfMemory`` or ``LearnerLost``.
        """
        placing = [
            self._cluster.place(LearnerActor, f"learner-{rank}", self._config, rank, slot=self._slot(rank))
            for rank in range(self._config.ranks)
        ]
        placed = await asyncio.gather(*placing, return_exceptions=True)
        self._ranks, self._asleep = [rank for rank in placed if not isinstance(rank, BaseException)], False
        for failed in placed:
            if isinstance(failed, BaseException):
                raise failed
        meeting = await call(
            self._ranks[0].run.remote(next(self._numbers), "meeting_point"), "learner-0.meeting_point", 60
        )
        asked = (call(rank.node.remote(), f"learner-{n}.node", 60) for n, rank in enumerate(self._ranks))
        self._nodes = await asyncio.gather(*asked)
        await self._share_directory()
        deadline = self._config.start_deadline_s
        given = self._models, self._run, len(self._ranks), meeting, self._writers()
        await self._all("start", *given, deadline_s=deadline)
        if self._run.rehearses:
            await self._all("rehearse")
        if self._shared is not None:
            self._shared.learner_up.set()

    async def _share_directory(self) -> None:
        """Raise ``ConfigError`` where a rank does not see the run directory: its part of every checkpoint would be elsewhere."""
        directory = self._run.run.directory.absolute()
        if not directory.is_dir():
            return  # this command keeps no checkpoints
        file = directory / f".shared-{secrets.token_hex(8)}"
        file.touch()
        try:
            seen = (
                call(rank.check_shared.remote(file), f"learner-{n}.check_shared", 60)
                for n, rank in enumerate(self._ranks)
            )
            await asyncio.gather(*seen)
        finally:
            file.unlink(missing_ok=True)

    def _writers(self) -> list[int]:
        """Rank 0; the first rank on each node where there are generators on every node."""
        return [0] if self._shared is None else [self._nodes.index(node) for node in dict.fromkeys(self._nodes)]

    def _slot(self, rank: int) -> BundleSlot:
        """All ranks are reserved together or not at all: half a learner would only keep others out.

        The ranks of one replica share a bundle, which is on one node.
        """
        if self._shared is not None:
            return self._shared.slot_of_rank(rank)
        config = self._config
        bundled = config.shards if config.replicas > 1 else 1
        bundle = ActorConfig(
            cpus=config.cpus * bundled, gpus=config.gpus * bundled, label_selector=config.label_selector
        )
        group = self._cluster.reserve("learner", [bundle] * (config.ranks // bundled))
        return BundleSlot(group, rank // bundled)

    async def sleep(self) -> None:
        """Release the devices' memory until ``wake``. Raises ``LearnerLost``."""
        if self._ranks and not self._asleep:
            await self._all("sleep")
            self._asleep = True

    async def wake(self) -> None:
        """Take it back. Raises ``LearnerLost``."""
        if self._asleep:
            await self._all("wake")
            self._asleep = False

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """Score responses under the learner's weights ``[S, T]``; ``rollout`` is the one they are of. Raises ``LearnerLost``."""
        self._rollout = self._rollout if rollout is None else rollout
        logprobs: Float32Array = await self._all("score", ray.put(batch), rollout)
        return logprobs

    async def update(self, batch: SequenceBatch, *, rollout: int, supervised: bool = False) -> UpdateOutcome:
        """Make one optimizer update by the RLEP loss, or by cross-entropy when ``supervised``. Raises ``LearnerLost``."""
        self._rollout = rollout
        outcome: UpdateOutcome = await self._all("update", ray.put(batch), rollout, supervised)
        return outcome

    async def publish(
        self, version: int, probes: Probes, dtype: WeightDtype, group: BroadcastGroup | None = None
    ) -> WeightUpdate:
        """Write the weights where generators load them from, or say what ``send`` will send to ``group``."""
        answers: list[WeightUpdate | None] = await self._on_all("publish", version, probes, dtype, group)
        found = [(node, one.source) for node, one in zip(self._nodes, answers, strict=True) if one is not None]
        nodes = {node: source for node, source in found if isinstance(source, SharedMemoryWeights)}
        assert answers[0] is not None, "rank 0 always writes"
        return replace(answers[0], nodes=nodes)

    async def open_group(self, backend: GroupBackend, world_size: int, deadline_s: float) -> BroadcastGroup:
        """Open a group that rank 0 will broadcast weights in."""
        group: BroadcastGroup = await self._all("open_group", backend, world_size, deadline_s)
        return group

    async def send(self, group: BroadcastGroup, dtype: WeightDtype, deadline_s: float) -> None:
        """Broadcast the weights. Raises ``WeightSyncError`` when the group failed."""
        await self._all("send", group, dtype, deadline_s=deadline_s)

    async def save(self, directory: Path) -> None:
        """Begin to write a checkpoint to an absolute path on a file system that all ranks' machines share."""
        await self._all("save", directory)

    async def written(self) -> None:
        """Wait until the checkpoint is complete. Raises ``LearnerLost`` when a rank is lost or the deadline passes."""

        async def complete() -> bool:
            return all(await self._each("written"))

        deadline_s = self._config.deadline_s
        late = LearnerLost(f"a checkpoint was not written within {deadline_s:.0f} s")
        await until(complete, late, deadline_s=deadline_s, poll_s=WRITTEN_POLL_S)

    async def load(self, directory: Path) -> None:
        """Continue from a checkpoint."""
        await self._all("load", directory)

    async def restart(self) -> None:
        """Start all ranks anew; those that are lost while they start are started again as well.

        An error that came again at the rollout where it came before the last restart would come every time: it is fatal.
        """
        lost: RlepError | None = None
        while self._restarts_left:
            rank, error_text, _, times = self._failure
            if times > 1:
                raise LearnerLost(f"Learner rank {rank} failed {times} times with the same error: {error_text}")
            self._restarts_left -= 1
            for rank in self._ranks:
                ray.kill(rank)
            try:
                await self.start()
            except (ActorLost, DeadlineExceeded) as error:
                lost = error
            else:
                return
        reason = first_line(lost) if lost else self._lost
        raise LearnerLost(
            f"the learner was lost and is out of restarts (learner.restarts = {self._config.restarts}): {reason}"
        )

    def status(self) -> RoleStatus:
        """Return a row for every rank; they start, fail and are started again together."""
        restarts = self._config.restarts - self._restarts_left
        state: State = "serving" if self._ranks else "placing"
        names = [f"learner-{rank}" for rank in range(self._config.ranks)]
        return RoleStatus("learner", tuple(ActorStatus(name, state, restarts=restarts) for name in names))

    async def close(self) -> None:
        """End all ranks."""
        await asyncio.gather(*(close_actor(rank, f"learner-{n}") for n, rank in enumerate(self._ranks)))
        self._cluster.forget("learner")

    async def _all(self, method: str, *args: object, deadline_s: float | None = None) -> Any:
        """Call a collective method on every rank; returns rank 0's answer."""
        return (await self._on_all(method, *args, deadline_s=deadline_s))[0]

    async def _on_all(self, method: str, *args: object, deadline_s: float | None = None) -> list[Any]:
        """Call a collective method on every rank, one collective at a time; returns each rank's answer."""
        async with self._collective:
            begin = time.time()
            try:
                return await self._each(method, *args, deadline_s=deadline_s)
            finally:
                self._cluster.timeline.add("learner", method, begin)

    async def _each(self, method: str, *args: object, deadline_s: float | None = None) -> list[Any]:
        """Return the answers of all ranks. Raises ``LearnerLost`` with what every rank that did not answer was asked."""
        deadline, number = deadline_s or self._config.deadline_s, next(self._numbers)
        calls = {
            f"learner-{n}.{method}": asyncio.ensure_future(
                watch_call(
                    rank,
                    rank.run.remote(number, method, *args),
                    f"learner-{n}",
                    method,
                    deadline_s=deadline,
                    heartbeat_timeout_s=self._config.heartbeat_timeout_s,
                )
            )
            for n, rank in enumerate(self._ranks)
        }
        try:
            return await asyncio.gather(*calls.values())
        except (ActorLost, DeadlineExceeded, RayTaskError) as error:
            await asyncio.wait(calls.values(), timeout=SETTLE_S)
            self._failure = _failure(calls, self._rollout, self._failure)
            account = _account(calls)
            self._lost = first_line(account)
            raise LearnerLost(account) from error
        finally:
            for waiting in calls.values():
                waiting.cancel()


def _failure(calls: Mapping[str, asyncio.Future[Any]], rollout: int, before: _Failure) -> _Failure:
    """Say why ranks failed, counted with the failures before if it is the same error no later in the run."""
    errors = {rank: call.exception() for rank, call in enumerate(calls.values()) if call.done()}
    raised = {rank: error for rank, error in errors.items() if isinstance(error, RayTaskError)}
    if not raised or len(raised) < sum(error is not None for error in errors.values()):
        return _Failure(0, "", rollout, 1)
    rank, error = next(iter(raised.items()))
    text = _cause(error)
    again = text == before.error and rollout <= before.rollout
    return _Failure(rank, text, rollout, before.times + 1 if again else 1)


def _cause(error: RayTaskError) -> str:
    """Return type and first line of what a rank's method raised."""
    return f"{type(error.cause).__name__}: {first_line(error.cause)}"


def _account(calls: Mapping[str, asyncio.Future[Any]]) -> str:
    """Return one line on every rank that did not answer, late and silent ones first, and the traceback of one that raised."""
    silent = [f"{name}: no answer" for name, waiting in calls.items() if not waiting.done()]
    errors = {name: waiting.exception() for name, waiting in calls.items() if waiting.done()}
    late: list[str] = []
    failed: list[str] = []
    traceback = ""
    for name, error in errors.items():
        if isinstance(error, RayTaskError):
            failed.append(f"{name}: {_cause(error)}")
            traceback = traceback or f"\n{error}"
        elif error is not None:  # it has the name
            (late if isinstance(error, DeadlineExceeded) else failed).append(str(error))
    return "; ".join([*late, *silent, *failed]) + traceback
