"""Learner ranks: each FSDP2 rank in its own actor, used as one learner that fails as one."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

from rlep.actors.cluster import Cluster, call
from rlep.actors.colocated import Colocated
from rlep.actors.crew import ActorStatus, RoleStatus, State
from rlep.actors.room import Seat
from rlep.actors.supervised import close_actor
from rlep.config_roles import LearnerConfig
from rlep.directories import private_directory
from rlep.engines.options import LearnerOptions
from rlep.engines.segment import Group, GroupBackend, Publication
from rlep.errors import ActorLost, DeadlineExceeded, LearnerLost, RlepError, WeightSyncError
from rlep.types import Float32Array, Int32Array, SequenceBatch, UpdateOutcome

if TYPE_CHECKING:
    from rlep.engines.segment_writer import SegmentWriter
    from rlep.engines.weights import WeightSender

Probes = Sequence[tuple[Int32Array, Int32Array]]
"""(prompt ``[P]``, response ``[T]``) token ids."""
Dtype = Literal["float32", "bfloat16", "float16"]

WRITTEN_POLL_S = 0.2
"""How often ranks are asked whether a checkpoint is complete; they answer between two collectives."""

SETTLE_S = 5.0
"""Once one rank has failed, time for the others to fail as well: one that does not is the one they waited for."""


@ray.remote
class LearnerActor:
    """One rank. ``start``, ``score``, ``update``, ``publish``, ``open_group``, ``send``, ``save`` and ``load`` are collective."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._segments: Path | None = None
        self._writer: SegmentWriter | None = None
        self._sender: WeightSender | None = None

    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def devices(self) -> str:
        """``CUDA_VISIBLE_DEVICES`` as Ray set it for this rank."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def meeting_point(self) -> str:
        """Where the ranks meet: a free port of rank 0's machine."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def start(self, model: Path, options: LearnerOptions, world_size: int, meeting_point: str) -> None:
        """Join the group and load the base weights."""
        if options.threads:
            os.environ["OMP_NUM_THREADS"] = str(options.threads)
        from rlep.engines.learner import LearnerRank
        from rlep.engines.segment_writer import SegmentWriter

        self._learner = LearnerRank(model, options, rank=self._rank, world_size=world_size, init_method=meeting_point)
        if self._rank == 0:
            self._segments = private_directory("weights", in_memory=True)
            self._writer = SegmentWriter(self._segments)

    def score(self, batch: SequenceBatch, rollout: int | None) -> Float32Array | None:
        """See ``LearnerRank.score``; rank 0 answers."""
        logprobs = self._learner.score(batch, rollout=rollout)
        return logprobs if self._rank == 0 else None

    def update(self, batch: SequenceBatch, rollout: int, supervised: bool, keep: bool) -> UpdateOutcome | None:
        """One optimizer update by the RLEP loss, or by cross-entropy; rank 0 answers."""
        step = self._learner.sft_update if supervised else partial(self._learner.update, keep=keep)
        report = step(batch, rollout=rollout)
        if self._rank:
            return None
        return UpdateOutcome(report.loss, report.grad_norm, report.lr, report.skipped, dict(report.stats), report.cost)

    def publish(self, version: int, probes: Probes, dtype: Dtype, group: Group | None) -> Publication | None:
        """Write a segment in the generators' ``dtype``, or say what ``send`` will send to ``group``. Rank 0 answers."""
        publication = self._learner.publish(group or self._writer, version, probes, dtype)
        return None if self._rank else publication

    def open_group(self, backend: GroupBackend, world_size: int, deadline_s: float) -> Group | None:
        """Leave the last group with the generators and begin a new one, which they may join; rank 0 answers."""
        if self._rank:
            return None
        from rlep.engines.weights import WeightSender

        if self._sender is not None:
            self._sender.close()
        self._sender = WeightSender(ray.util.get_node_ip_address(), backend, world_size, deadline_s)
        return self._sender.group

    def send(self, group: Group, dtype: Dtype) -> None:
        """Broadcast the weights to ``group``, which must be the open one."""
        if self._rank == 0 and (self._sender is None or self._sender.group != group):
            self._learner.send(None, dtype)  # the other ranks gather already
            raise WeightSyncError(f"the learner is not in the group of {group.host}:{group.port}")
        self._learner.send(self._sender, dtype)

    def save(self, directory: Path) -> None:
        """See ``LearnerRank.save``."""
        self._learner.save(directory)

    def written(self) -> bool:
        """See ``LearnerRank.written``."""
        return self._learner.written()

    def load(self, directory: Path) -> None:
        """See ``LearnerRank.load``."""
        self._learner.load(directory)

    def sleep(self) -> None:
        """See ``LearnerRank.sleep``."""
        self._learner.sleep()

    def wake(self) -> None:
        """See ``LearnerRank.wake``."""
        self._learner.wake()

    def close(self) -> None:
        """Remove the segments and leave the groups."""
        if self._sender is not None:
            self._sender.close()
        if self._segments is not None:
            shutil.rmtree(self._segments, ignore_errors=True)
        self._learner.close()


class Learners:
    """All ranks behind the driver's ``Learner`` port."""

    def __init__(
        self,
        cluster: Cluster,
        config: LearnerConfig,
        model: Path,
        options: LearnerOptions,
        *,
        shared: Colocated | None = None,
    ) -> None:
        """``shared``: where the ranks share their devices with generators."""
        self._cluster, self._config, self._model, self._options = cluster, config, model, options
        self._shared = shared
        self._asleep = False
        self._ranks: list[ActorHandle[Any]] = []
        self._restarts_left = config.restarts
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Place and start all ranks. Raises ``PlacementError``, ``ModelError`` or ``LearnerLost``."""
        placing = [
            self._cluster.place(LearnerActor, f"learner-{rank}", self._config, rank, seat=self._seat(rank))
            for rank in range(self._config.ranks)
        ]
        placed = await asyncio.gather(*placing, return_exceptions=True)
        self._ranks, self._asleep = [rank for rank in placed if not isinstance(rank, BaseException)], False
        for failed in placed:
            if isinstance(failed, BaseException):
                raise failed
        meeting = await call(self._ranks[0].meeting_point.remote(), "learner-0.meeting_point", 60)
        deadline = self._config.start_deadline_s
        await self._all("start", self._model, self._options, len(self._ranks), meeting, deadline_s=deadline)
        if self._shared is not None:
            self._shared.learner_up.set()

    def _seat(self, rank: int) -> Seat:
        """All ranks get room together or not at all: half a learner would only keep others out."""
        if self._shared is not None:
            return self._shared.seat_of_rank(rank)
        return Seat(self._cluster.reserve("learner", [self._config] * self._config.ranks), rank)

    async def sleep(self) -> None:
        """Let go of the devices' memory until ``wake``. Raises ``LearnerLost``."""
        if self._ranks and not self._asleep:
            await self._all("sleep")
            self._asleep = True

    async def wake(self) -> None:
        """Take it back. Raises ``LearnerLost``."""
        if self._asleep:
            await self._all("wake")
            self._asleep = False

    async def score(self, batch: SequenceBatch, *, rollout: int | None = None) -> Float32Array:
        """See the port."""
        logprobs: Float32Array = await self._all("score", ray.put(batch), rollout)
        return logprobs

    async def update(
        self, batch: SequenceBatch, *, rollout: int, supervised: bool = False, keep: bool = False
    ) -> UpdateOutcome:
        """See the port; ``supervised`` trains by cross-entropy on the batch's responses instead."""
        outcome: UpdateOutcome = await self._all("update", ray.put(batch), rollout, supervised, keep)
        return outcome

    async def publish(self, version: int, probes: Probes, dtype: Dtype, group: Group | None = None) -> Publication:
        """Write the weights where generators load them from, or say what ``send`` will send to ``group``."""
        publication: Publication = await self._all("publish", version, probes, dtype, group)
        return publication

    async def open_group(self, backend: GroupBackend, world_size: int, deadline_s: float) -> Group:
        """A group that rank 0 will broadcast weights in; see ``WeightSender``."""
        group: Group = await self._all("open_group", backend, world_size, deadline_s)
        return group

    async def send(self, group: Group, dtype: Dtype, deadline_s: float) -> None:
        """Broadcast the weights. Raises ``WeightSyncError`` when the group failed."""
        await self._all("send", group, dtype, deadline_s=deadline_s)

    async def save(self, directory: Path) -> None:
        """See the port; absolute, on a file system that all ranks' machines share."""
        await self._all("save", directory)

    async def written(self) -> None:
        """See the port. Raises ``LearnerLost`` when a rank is gone or the deadline passes."""
        deadline = time.monotonic() + self._config.deadline_s
        while not all(await self._each("written")):
            if time.monotonic() > deadline:
                raise LearnerLost(f"a checkpoint was not written within {self._config.deadline_s:.0f} s")
            await asyncio.sleep(WRITTEN_POLL_S)

    async def load(self, directory: Path) -> None:
        """See the port."""
        await self._all("load", directory)

    async def restart(self) -> None:
        """See the port; ranks that are lost while they start are started again as well."""
        lost: RlepError | None = None
        while self._restarts_left:
            self._restarts_left -= 1
            for rank in self._ranks:
                ray.kill(rank)
            try:
                await self.start()
            except (ActorLost, DeadlineExceeded) as error:
                lost = error
            else:
                return
        reason = "" if lost is None else f": {lost}"
        raise LearnerLost(f"the learner was lost and has no restart left{reason}")

    def status(self) -> RoleStatus:
        """Which ranks there are; they start, fail and are started again together."""
        restarts = self._config.restarts - self._restarts_left
        state: State = "serving" if self._ranks else "placing"
        names = [f"learner-{rank}" for rank in range(self._config.ranks)]
        return RoleStatus("learner", tuple(ActorStatus(name, state, restarts=restarts) for name in names))

    async def close(self) -> None:
        """End all ranks."""
        await asyncio.gather(*(close_actor(rank, f"learner-{n}") for n, rank in enumerate(self._ranks)))
        self._cluster.forget("learner")

    async def _all(self, method: str, *args: object, deadline_s: float | None = None) -> Any:
        """Call a collective method on every rank; rank 0's answer. One collective at a time."""
        async with self._turn:
            begin = time.time()
            try:
                return (await self._each(method, *args, deadline_s=deadline_s))[0]
            finally:
                self._cluster.timeline.add("learner", method, begin)

    async def _each(self, method: str, *args: object, deadline_s: float | None = None) -> list[Any]:
        """The answers of all ranks. Raises ``LearnerLost`` with what every rank that did not answer was asked."""
        deadline = deadline_s or self._config.deadline_s
        calls = {
            f"learner-{n}.{method}": asyncio.ensure_future(
                call(getattr(rank, method).remote(*args), f"learner-{n}.{method}", deadline)
            )
            for n, rank in enumerate(self._ranks)
        }
        try:
            return await asyncio.gather(*calls.values())
        except (ActorLost, DeadlineExceeded, RayTaskError) as error:
            await asyncio.wait(calls.values(), timeout=SETTLE_S)
            raise LearnerLost(_account(calls)) from error
        finally:
            for waiting in calls.values():
                waiting.cancel()


def _account(calls: Mapping[str, asyncio.Future[Any]]) -> str:
    """One line on every rank that did not answer, silent ones first; below it the traceback of one that raised."""
    silent = [f"{name}: no answer" for name, waiting in calls.items() if not waiting.done()]
    errors = {name: waiting.exception() for name, waiting in calls.items() if waiting.done()}
    failed, traceback = [], ""
    for name, error in errors.items():
        if isinstance(error, RayTaskError):
            cause = (str(error.cause).splitlines() or [""])[0]
            failed.append(f"{name}: {type(error.cause).__name__}: {cause}")
            traceback = traceback or f"\n{error}"
        elif error is not None:
            failed.append(str(error))  # it has the name
    return "; ".join([*silent, *failed]) + traceback
