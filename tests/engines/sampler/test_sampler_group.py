"""A real vLLM that takes its weights from a learner's broadcast: over gloo, and over NCCL where two GPUs are.

python -m pytest tests/engines/sampler/test_sampler_group.py -k nccl
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from rlep.config.schema import Config
from rlep.core.errors import ModelError, WeightSyncError
from rlep.engines.learner.weight_sender import WeightSender
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.weight_update import (
    SharedMemoryWeights,
)
from tests.engines.sampler.sampler_cases import (
    CONTEXT,
    Published,
    build_model,
    config_of,
    perturb,
)
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
GLOO = config_of(max_sequences=8, max_batched_tokens=CONTEXT, transfer="gloo")
NCCL = GLOO.with_values(generator={"transfer": "nccl", "gpus": 1.0, "memory_utilization": 0.3})
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs: one for each side")


class Rig(Published):
    """A started sampler that is sent weights by a learner of this process."""

    def new_group(self, deadline_s: float = 60.0) -> WeightSender:
        """Of the learner and this generator."""
        assert self.config.generator.transfer != "shared_memory"
        return WeightSender("127.0.0.1", self.config.generator.transfer, 2, deadline_s)

    def send(self, sender: WeightSender, count: int | None) -> None:
        """The learner's side, of the first ``count`` weights or all; it is on the second GPU, where there are any."""
        if self.config.generator.gpus:
            torch.cuda.set_device(1)
        home = "cuda:1" if self.config.generator.gpus else "cpu"
        weights = itertools.islice(self.model.named_parameters(), count)
        sender.send(self.layout, ((name, weight.to(home)) for name, weight in weights))

    async def transfer(self, sender: WeightSender, version: int, count: int | None = None) -> None:
        """Both sides at once."""
        sent, loaded = await asyncio.gather(
            asyncio.to_thread(self.send, sender, count),
            self.sampler.load_weights(self.offer(sender.group, version)),
            return_exceptions=True,
        )
        for outcome in (loaded, sent):
            if outcome is not None:
                raise outcome


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(GLOO, id="gloo"), pytest.param(NCCL, id="nccl", marks=TWO_GPUS)],
)
async def rig(
    request: pytest.FixtureRequest, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    config: Config = request.param
    directory = tmp_path_factory.mktemp("model")
    model = build_model(directory, tied=True)
    prepare_environment(config)
    sampler = Sampler(directory, config)
    await sampler.start(deadline_s=500)
    yield Rig(config, sampler, model)
    await sampler.close()


async def test_versions_follow_each_other_through_one_group_and_are_confirmed(rig: Rig) -> None:
    sender = rig.new_group()
    for version in (1, 2, 3):
        perturb(rig.model, 0.05)
        await rig.transfer(sender, version)
        assert await rig.sampler.confirm(rig.offer(sender.group, version)) <= rig.tolerance
        assert rig.sampler.policy_version == version
    sender.close()


async def test_what_cannot_be_taken_is_refused_before_the_old_weights_are_touched(rig: Rig, tmp_path: Path) -> None:
    served, group = rig.sampler.policy_version, rig.new_group().group
    with pytest.raises(WeightSyncError, match=f"takes weights by {rig.config.generator.transfer}"):
        await rig.sampler.load_weights(
            replace(rig.offer(group, 9), source=SharedMemoryWeights(tmp_path / "weights-0", 1, ""))
        )
    with pytest.raises(WeightSyncError, match=f"takes weights by {rig.config.generator.transfer}"):
        await rig.sampler.load_weights(
            rig.offer(replace(group, backend="nccl" if group.backend == "gloo" else "gloo"), 9)
        )
    with pytest.raises(ModelError, match="1 missing"):
        await rig.sampler.load_weights(replace(rig.offer(group, 9), layout=rig.layout[1:]))
    assert rig.sampler.policy_version == served is not None


async def test_a_load_that_leaves_the_old_weights_is_refused_though_log_probs_do_not_show_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None: ...

    if rig.config.generator.compute_dtype == "bfloat16":
        pytest.skip("a change that bfloat16 shows may be one that log-probs show")
    first, second, third = rig.new_group(), rig.new_group(), rig.new_group()
    await rig.transfer(first, 4)
    served = rig.offer(first.group, 4)
    perturb(rig.model, 1e-7)
    offered = rig.offer(second.group, 5)
    assert offered.logprob_difference([probe.logprobs for probe in served.probes]) < offered.tolerance
    with monkeypatch.context() as patch:
        for part in ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"):
            patch.setattr(rig.sampler._engine, part, nothing)
        with pytest.raises(WeightSyncError, match=r"of the engine's \d+ weights are not what was published: "):
            await rig.sampler.load_weights(offered)
    for version in (5, 6):  # the sixth has the fifth's weights, so nothing has to change
        await rig.transfer(third, version)
        assert await rig.sampler.confirm(rig.offer(third.group, version)) <= rig.tolerance
    for sender in (first, second, third):
        sender.close()


async def test_a_learner_that_breaks_off_leaves_nothing_served_until_a_new_group_repeats_it(rig: Rig) -> None:
    if rig.config.generator.transfer == "nccl":
        pytest.skip("a generator that NCCL holds is ended by its supervisor: tests/cluster/test_weight_group.py")
    broken = rig.new_group(deadline_s=5.0)
    with pytest.raises(WeightSyncError, match="failed and must be repeated"):
        await rig.transfer(broken, 4, count=5)
    broken.close()
    assert rig.sampler.policy_version is None
    with pytest.raises(WeightSyncError, match="loaded is None"):
        await rig.sampler.confirm(rig.offer(broken.group, 4))
    perturb(rig.model, 0.05)
    sender = rig.new_group()
    await rig.transfer(sender, 4)
    assert await rig.sampler.confirm(rig.offer(sender.group, 4)) <= rig.tolerance
    sender.close()


async def test_a_learner_that_never_comes_is_an_error_after_the_deadline_and_the_engine_is_no_less_alive(
    rig: Rig,
) -> None:
    absent = rig.new_group(deadline_s=10.0)
    loading = asyncio.create_task(rig.sampler.load_weights(rig.offer(absent.group, 5)))
    await until(rig.sampler._among_peers.is_set, "the engine to wait for its peers")
    for _ in range(20):  # each within milliseconds, or it would wait out the group's deadline
        await rig.sampler.health()
        assert rig.sampler.policy_version is None
    assert not loading.done()
    with pytest.raises(WeightSyncError, match=r"ranks? \[?1\]? of 2 did not meet the others"):
        await loading
    sender = rig.new_group()
    await rig.transfer(sender, 5)
    assert await rig.sampler.confirm(rig.offer(sender.group, 5)) <= rig.tolerance
    sender.close()
