"""Check of turns: learner and generator work on one device by time, each while the other sleeps without its memory."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from rlep.check.finding import CheckSkipped
from rlep.check.inputs import shape_of
from rlep.check.parts.generator_checks import difference_to, requests_of, sampled, started, with_engine
from rlep.check.parts.learner_checks import make_rank
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig, halves, scored
from rlep.config.schema import Config
from rlep.core.errors import ModelError, WeightSyncError
from rlep.core.plural import sized
from rlep.core.types import Sampling
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.sampler.engine import Sampler
from rlep.engines.weights.shared_memory import SharedMemoryWriter
from rlep.engines.weights.weight_update import LOGPROB_TOLERANCE
from rlep.plan.learner import plan_learner
from rlep.plan.memory import PROCESS_BYTES

TURNS = 2
MAX_TOKENS = 12
GROWTH_BYTES = 2**28
"""Allowed from the last sleep but one, after which all code is loaded, to the last."""


class Forgetful(Sampler):
    """A generator on CPUs that forgets in its sleep what one on GPUs does."""

    worker = "rlep.check.parts.forgetful_worker.ForgetfulWorkerExtension"

    def __init__(self, model: Path, config: Config) -> None:
        super().__init__(model, with_engine(config, worker_extension_cls=self.worker))

    async def sleep(self) -> None:
        """Sleep, which frees nothing here, and forget."""
        await super().sleep()
        await self._running().collective_rpc("forget")


@dataclass(frozen=True, slots=True)
class Asleep:
    """Bytes of one GPU that each side keeps in its sleep."""

    whole: int
    """The GPU's memory."""
    generator: tuple[int, ...]
    """Kept by the generator, after each time it fell asleep."""
    rank: int
    """Kept by the rank and by whoever else is on the GPU."""

    def check(self, training: int, share: float) -> str:
        """Raise ``CheckFailed`` unless a rank that needs ``training`` bytes, and a generator's ``share``, fit beside them."""
        most, whole = max(self.generator), self.whole
        kept = f"asleep the generator keeps {sized(most)} and the rank {sized(self.rank)}, planned {sized(PROCESS_BYTES)} each"
        if self.generator[-1] > self.generator[-2] + GROWTH_BYTES:
            raise CheckFailed(f"asleep the generator keeps more each time: {', '.join(map(sized, self.generator))}")
        if training + most > whole:
            raise CheckFailed(
                f"{kept}; a rank of the whole model needs {sized(training)} beside it, the GPU has {sized(whole)}"
            )
        if share * whole + self.rank > whole:
            raise CheckFailed(
                f"{kept}; generator.memory_utilization = {share:g} leaves it {sized(int((1 - share) * whole))}"
            )
        return f"; {kept}"


def turns(rig: Rig, learner: type[LearnerRank] = LearnerRank, sampler: type[Sampler] | None = None) -> str:
    """Sample, sleep, update, publish, wake, confirm and sample, twice: log-probs after each sleep are the learner's.

    On CPUs by an engine that forgets in its sleep, so that a read of what did not survive shows.
    """
    if rig.config.cluster.placement != "colocated":
        raise CheckSkipped(
            "cluster.placement = split: learner and generators have devices of their own and never sleep"
        )
    try:
        return asyncio.run(_turns(rig, learner, sampler or (Sampler if rig.cuda else Forgetful)))
    except WeightSyncError as error:
        raise CheckFailed(str(error)) from None


async def _turns(rig: Rig, learner: type[LearnerRank], kind: type[Sampler]) -> str:
    share = rig.config.generator.memory_utilization
    config = rig.sampler(share)
    requests = requests_of(rig)
    sampling = Sampling(0.0, 1.0, 0, min(MAX_TOKENS, rig.config.rollout.max_tokens))
    batch = rig.short_batch()
    writer, dtype = SharedMemoryWriter(rig.shared), config.generator.compute_dtype
    differences, kept = [], []
    with closing(make_rank(rig, learner, "turns")) as made:
        made.sleep()  # an engine starts beside a rank that sleeps, as in a run
        alone = _free(rig)
        async with started(rig, kind, config) as engine:
            engine.serve_base(0)
            for version in range(TURNS + 1):
                answers = await sampled(engine, requests, sampling)
                await engine.sleep()
                kept.append(alone - _free(rig))
                made.wake()
                differences.append(difference_to(made, requests, answers))
                if not differences[-1] <= LOGPROB_TOLERANCE[dtype]:
                    raise CheckFailed(
                        f"after {version} turns log-probs sampled differ from the learner's by {differences[-1]:.2g} nats on "
                        f"average, allowed {LOGPROB_TOLERANCE[dtype]:g}"
                    )
                if version < TURNS:
                    made.update(scored(batch, made.score(batch)), rollout=version)
                    offer = made.publish(writer, version + 1, halves(batch), dtype)
                    assert offer is not None
                    made.sleep()
                    rank = _whole(rig) - _free(rig) - kept[-1]
                    await engine.load_weights(offer)
                    await engine.confirm(offer)
    done = f"{TURNS} turns of one device, sampled log-probs within {max(differences):.1g} nats of the learner's"
    if not rig.cuda:
        return f"{done}, by an engine that forgets what a GPU's does"
    return done + Asleep(_whole(rig), tuple(kept), rank).check(_training(rig), share)


def _free(rig: Rig) -> int:
    return torch.cuda.mem_get_info()[0] if rig.cuda else 0


def _whole(rig: Rig) -> int:
    return torch.cuda.mem_get_info()[1] if rig.cuda else 0


def _training(rig: Rig) -> int:
    """Bytes of a GPU planned for a rank of the whole model; 0 for a shape that cannot be planned."""
    try:
        plan = plan_learner(rig.config, shape_of(rig.config))
    except ModelError:
        return 0
    return plan.peak_bytes - plan.host_bytes + PROCESS_BYTES
