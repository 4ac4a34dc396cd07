"""Checks of weights on their way from a learner to a generator, by the configured transport."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import torch

from rlep.check.finding import CheckSkipped
from rlep.check.parts.generator_checks import started, with_engine
from rlep.check.parts.learner_checks import make_rank
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig, halves, scored
from rlep.core.errors import ActorLost, WeightSyncError
from rlep.core.types import Int32Array
from rlep.core.variables import variables
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.weight_sender import WeightSender
from rlep.engines.sampler.engine import Sampler
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import WeightUpdate

DYING = "rlep.check.parts.dying_worker.DyingWorkerExtension"
Probed = tuple[Int32Array, Int32Array]
"""Prompt and response whose log-probs are compared."""


def weights(rig: Rig, learner: type[LearnerRank] = LearnerRank, sampler: type[Sampler] = Sampler) -> str:
    """A learner's updated weights arrive in the generator, which then has the learner's log-probs."""
    _need_gpus(rig)
    return asyncio.run(_weights(rig, learner, sampler))


async def _weights(rig: Rig, learner: type[LearnerRank], kind: type[Sampler]) -> str:
    async with started(rig, kind) as sampler:
        with _updated(rig, learner) as (made, probes):
            update, seconds, difference = await _sent(rig, made, sampler, probes, version=1)
        size = sum(spec.nbytes for spec in update.layout)
        return (
            f"{rig.config.generator.transfer}: {size / 2**20:.1f} MiB in {seconds:.2f} s ({size / 2**30 / seconds:.2f} GiB/s), "
            f"log-probs within {difference:.1g} nats of the learner's on average"
        )


def lost_member(rig: Rig, learner: type[LearnerRank] = LearnerRank, sampler: type[Sampler] = Sampler) -> str:
    """A generator is killed half way through a transfer: both sides end, and one started anew takes the next version."""
    _need_gpus(rig)
    return asyncio.run(_lost_member(rig, learner, sampler))


async def _lost_member(rig: Rig, learner: type[LearnerRank], kind: type[Sampler]) -> str:
    deadline_s = 2 * rig.config.generator.transfer_deadline_s  # to meet, and to transfer
    with ExitStack() as undo:
        async with started(rig, kind, with_engine(rig.sampler(), worker_extension_cls=DYING)) as sampler:
            made, probes = undo.enter_context(_updated(rig, learner))
            begun = time.perf_counter()
            both = asyncio.gather(*_sides(rig, made, sampler, _offer(rig, made, probes, 1)), return_exceptions=True)
            try:
                async with asyncio.timeout(deadline_s):
                    taken, *sent = await both
            except TimeoutError:
                raise CheckFailed(
                    f"the generator was killed in a transfer, which had not ended after {deadline_s:.0f} s"
                ) from None
            seconds = time.perf_counter() - begun
        if not isinstance(taken, ActorLost | WeightSyncError):
            raise CheckFailed(
                f"the generator was killed in a transfer, and the transfer said {taken or 'nothing'!r:.200}"
            )
        if other := [one for one in sent if one is not None and not isinstance(one, WeightSyncError)]:
            raise CheckFailed(f"the generator was killed in a transfer, and the learner met {other[0]!r:.200}")
        async with started(rig, kind) as again:
            _, _, difference = await _sent(rig, made, again, probes, version=2)
    return (
        f"killed in a transfer by {rig.config.generator.transfer}, seen after {seconds:.1f} s; started anew, the next version's "
        f"log-probs are within {difference:.1g} nats of the learner's on average"
    )


def _need_gpus(rig: Rig) -> None:
    if rig.config.generator.transfer == "nccl" and torch.cuda.device_count() < 2:
        raise CheckSkipped("NCCL needs two GPUs, one for each side")


@contextmanager
def _updated(rig: Rig, learner: type[LearnerRank]) -> Iterator[tuple[LearnerRank, Sequence[Probed]]]:
    """A rank after one update, over NCCL on the second GPU, and what to compare log-probs on."""
    batch = rig.short_batch()
    with variables(second_gpu() if rig.config.generator.transfer == "nccl" else {}):
        rank = make_rank(rig, learner, "weights")
    with closing(rank) as made:
        made.update(scored(batch, made.score(batch)), rollout=0)
        yield made, halves(batch)


def second_gpu() -> dict[str, str]:
    """Variables by which a process that has not used a GPU yet takes the second of those that this one may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1"
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[1]}


def _offer(
    rig: Rig, made: LearnerRank, probes: Sequence[Probed], version: int
) -> tuple[WeightUpdate, WeightSender | None]:
    """The learner's weights, and over a network who sends them."""
    dtype, transfer = rig.config.generator.compute_dtype, rig.config.generator.transfer
    if transfer == "shared_memory":
        sender, update = None, made.publish(SharedMemoryWriter(rig.shared), version, probes, dtype)
    else:
        sender = WeightSender("127.0.0.1", transfer, 2, rig.config.generator.transfer_deadline_s)
        update = made.publish(sender.group, version, probes, dtype)
    assert update is not None
    return update, sender


def _sides(
    rig: Rig, made: LearnerRank, sampler: Sampler, offer: tuple[WeightUpdate, WeightSender | None]
) -> list[Coroutine[Any, Any, None]]:
    """The generator's part of a transfer, and over a network the learner's."""
    update, sender = offer
    taking = sampler.load_weights(update)
    return (
        [taking]
        if sender is None
        else [taking, asyncio.to_thread(made.send, sender, rig.config.generator.compute_dtype)]
    )


async def _sent(
    rig: Rig, made: LearnerRank, sampler: Sampler, probes: Sequence[Probed], version: int
) -> tuple[WeightUpdate, float, float]:
    """The update, the seconds it took, and the mean log-prob difference (nats)."""
    update, sender = _offer(rig, made, probes, version)
    begun = time.perf_counter()
    try:
        await asyncio.gather(*_sides(rig, made, sampler, (update, sender)))
        return update, time.perf_counter() - begun, await sampler.confirm(update)
    except WeightSyncError as error:
        raise CheckFailed(str(error)) from None
