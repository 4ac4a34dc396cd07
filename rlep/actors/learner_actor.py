"""One learner rank as a Ray actor."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rlep.actors.node_address import node_address, use_node_interface
from rlep.actors.node_model import model_on_node
from rlep.actors.once import Once
from rlep.config.schema import Config
from rlep.core.builds import check_builds, check_cxx, check_triton
from rlep.core.errors import ConfigError, WeightSyncError
from rlep.core.heap import keep_freed_memory
from rlep.core.paths import private_directory
from rlep.core.types import Float32Array, Int32Array, SequenceBatch, UpdateOutcome
from rlep.core.waiting import until
from rlep.engines.learner.allocator import allocator_settings
from rlep.engines.rendezvous import listen
from rlep.engines.weights.weight_update import BroadcastGroup, GroupBackend, WeightDtype, WeightUpdate

if TYPE_CHECKING:
    from rlep.engines.learner.weight_sender import WeightSender
    from rlep.engines.weights.shared_memory import SharedMemoryWriter

Probes = Sequence[tuple[Int32Array, Int32Array]]
"""(prompt ``[P]``, response ``[T]``) token ids."""

SHARED_S = 30.0
"""Longest wait for a file that the driver has just made: what NFS knows of a directory may be as old."""


@ray.remote
class LearnerActor:
    """A rank in its own thread, so that ``ping`` returns while the rank computes."""

    def __init__(self, rank: int) -> None:
        keep_freed_memory(None, one_arena=True)  # before the thread exists: a thread keeps the heap it started with
        self._rank = Rank(rank)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rank")
        self._working = 0
        self._once = Once()

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def devices(self) -> str:
        """Return ``CUDA_VISIBLE_DEVICES`` as Ray set it for this rank."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    async def node(self) -> str:
        """Return the id of the Ray node that it is on."""
        return ray.get_runtime_context().get_node_id()

    async def check_shared(self, file: Path) -> None:
        """Raise ``ConfigError`` where this machine does not see a new ``file`` of the driver's run directory."""
        late = ConfigError(
            f"run.directory = {file.parent} on {platform.node()}, where a learner rank is, is not the driver's: "
            "it must be a directory that the machines of driver and learner share"
        )
        await until(lambda: asyncio.to_thread(os.path.exists, file), late, deadline_s=SHARED_S, poll_s=1.0)

    async def run(self, number: int, method: str, *args: object) -> Any:
        """Call a method of ``Rank``; calls run one after another, but for ``written``, which is answered at once.

        A call that comes again with its ``number`` is the same one. Raises ``OutOfMemory`` where there is too little for it.
        """
        if method == "written":
            return self._rank.written()
        return await self._once(number, lambda: self._run(method, *args))

    async def _run(self, method: str, *args: object) -> Any:
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._rank.call, method, *args)
        finally:
            self._working -= 1

    async def close(self) -> None:
        """Remove the shared-memory weights and leave the groups.

        In the middle of a computation, which nobody waits for any more and which may take minutes, only the weights are
        removed: the process is killed next.
        """
        if self._working:
            self._rank.remove_weights()
        else:
            await self._run("close")


class Rank:
    """Every method but ``written`` and ``remove_weights`` belongs to one thread.

    Collective are ``start``, ``score``, ``update``, ``publish``, ``open_group``, ``send`` and, of ``LearnerRank``, ``rehearse``,
    ``save`` and ``load``.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._open = ExitStack()
        self._listening: socket.socket | None = None
        self._writer: SharedMemoryWriter | None = None
        self._published: Path | None = None
        self._sender: WeightSender | None = None

    def call(self, method: str, *args: object) -> Any:
        """Call a method of this class or, for what needs nothing but the learner, of ``LearnerRank``. Raises ``OutOfMemory``."""
        try:
            return getattr(self if hasattr(self, method) else self._learner, method)(*args)
        except RuntimeError as error:
            from rlep.engines.learner.device_state import out_of_memory  # not before ``start`` has set the threads

            if (lacking := out_of_memory(error, self._rank, method)) is None:
                raise
            raise lacking from error

    def meeting_point(self) -> str:
        """Listen on a free port of rank 0's node; returns its address, where the ranks meet."""
        address = node_address()
        self._listening = listen(address)
        host = f"[{address}]" if ":" in address else address
        return f"tcp://{host}:{self._listening.getsockname()[1]}"

    def start(
        self, models: Sequence[Path], config: Config, world_size: int, meeting_point: str, writers: Sequence[int]
    ) -> None:
        """Join the group and load the base weights; ``models``: directories of ``Config.models`` on the driver's machine.

        The ranks ``writers`` write weights to their nodes' shared memory.
        """
        check_builds(None, config.learner.gpus)
        check_cxx(compiled=config.learner.compile, gpus=config.learner.gpus)
        if config.learner.gpus and config.learner.compile:
            check_triton()
        os.environ["OMP_NUM_THREADS"] = str(config.learner_threads)
        # ``learner.compile``: torch would start up to 32 processes that compile, for every rank.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(config.learner_threads))
        os.environ.update(allocator_settings(config.learner))
        use_node_interface()
        model, *teacher = (
            model_on_node(there, kind, config.learner.start_deadline_s, os.environ)
            for there, kind in zip(models, config.models, strict=True)
        )
        from rlep.engines.learner.rank import LearnerRank
        from rlep.engines.weights.shared_memory import SharedMemoryWriter

        self._learner = LearnerRank(
            model,
            config,
            rank=self._rank,
            world_size=world_size,
            meeting_point=meeting_point,
            listening=self._listening,
            teacher=teacher[0] if teacher else None,
        )
        self._open.callback(self._learner.close)
        if self._rank in writers:
            self._published = private_directory("weights", in_memory=True)
            self._open.callback(self.remove_weights)
            self._writer = SharedMemoryWriter(self._published)

    def score(self, batch: SequenceBatch, rollout: int | None) -> Float32Array | None:
        """Score responses ``[S, T]``; only rank 0 returns the log-probs."""
        logprobs = self._learner.score(batch, rollout=rollout)
        return logprobs if self._rank == 0 else None

    def update(self, batch: SequenceBatch, rollout: int, supervised: bool) -> UpdateOutcome | None:
        """Make one optimizer update by the RLEP loss, or by cross-entropy; only rank 0 returns the outcome."""
        step = self._learner.sft_update if supervised else self._learner.update
        outcome = step(batch, rollout=rollout)
        return None if self._rank else outcome

    def publish(
        self, version: int, probes: Probes, dtype: WeightDtype, group: BroadcastGroup | None
    ) -> WeightUpdate | None:
        """Write the weights to shared memory in ``dtype``, or say what ``send`` will send to ``group``; writers return."""
        weight_update = self._learner.publish(group or self._writer, version, probes, dtype)
        return None if self._writer is None else weight_update

    def open_group(self, backend: GroupBackend, world_size: int, deadline_s: float) -> BroadcastGroup | None:
        """Leave the last group with the generators and open a new one for them to join; only rank 0 returns it."""
        if self._rank:
            return None
        from rlep.engines.learner.weight_sender import WeightSender

        if self._sender is not None:
            self._sender.close()
        self._sender = WeightSender(node_address(), backend, world_size, deadline_s)
        return self._sender.group

    def send(self, group: BroadcastGroup, dtype: WeightDtype) -> None:
        """Broadcast the weights to ``group``, which must be the open one."""
        if self._rank == 0 and (self._sender is None or self._sender.group != group):
            self._learner.send(None, dtype)  # the other ranks are gathering already
            raise WeightSyncError(f"the learner is not in the group of {group.host}:{group.port}")
        self._learner.send(self._sender, dtype)

    def written(self) -> bool:
        """Say whether the last checkpoint is complete."""
        return self._learner.written()

    def remove_weights(self) -> None:
        """Remove the weights in shared memory; from any thread."""
        if self._published is not None:
            shutil.rmtree(self._published, ignore_errors=True)

    def close(self) -> None:
        """Remove the shared-memory weights and leave the groups, those that exist."""
        if self._sender is not None:
            self._sender.close()
        self._open.close()
