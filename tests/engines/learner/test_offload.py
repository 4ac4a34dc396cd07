"""State in host memory: of ranks that sleep, and shards that rest there while the ranks compute on GPUs (``cpu_offload``).

The latter are torch's fake tensors, which have a device and a shape but no numbers: they show, without a GPU, where each
operation leaves its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from rlep.config.training import UpdateConfig
from rlep.engines.learner.full_weights import FullWeights
from rlep.engines.learner.offload import OffloadedState
from rlep.engines.learner.optimizer import ShardedAdamW

Shards = tuple[tuple[str, DTensor], ...]


@pytest.fixture(params=[1, 2])
def shards(request: pytest.FixtureRequest) -> Iterator[Shards]:
    """Rank 0's of a weight ``[4, 3]``, on the host, over a mesh of one or two GPUs."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    try:
        mesh = init_device_mesh("cuda", (request.param,))
        with FakeTensorMode():
            local = torch.empty(4 // request.param, 3, device="cuda")
            yield (("weight", DTensor.from_local(local, mesh, [Shard(0)], run_check=False).to("cpu")),)
    finally:
        dist.destroy_process_group()


def test_weights_are_gathered_on_the_gpu_where_nccl_can_take_them(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert shards[0][1].to_local().device.type == "cpu"
    assert [
        (name, weight.device.type, tuple(weight.shape)) for name, weight in FullWeights(shards).gathered("float32")
    ] == [("weight", "cuda", (4, 3))]


def test_moments_that_a_checkpoint_takes_and_gives_back_are_the_optimizers_own(shards: Shards) -> None:
    optimizer = ShardedAdamW(shards, UpdateConfig(), 400)
    (state,) = optimizer._adamw.state.values()
    for key in ("exp_avg", "exp_avg_sq"):
        moment = optimizer.moments()[f"{key}.weight"]
        assert tuple(moment.shape) == (4, 3)
        assert moment.to_local().device.type == "cpu"
        assert moment.to_local().untyped_storage()._cdata == state[key].untyped_storage()._cdata


def test_pinned_memory_is_kept_for_the_next_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    weights, asleep = [torch.arange(6.0), torch.arange(3.0)], OffloadedState()
    used = []
    for _ in range(2):
        asleep.offload(weights, torch.device("cpu"))
        assert [weight.untyped_storage().nbytes() for weight in weights] == [0, 0]
        used.append(sorted(host.data_ptr() for _, host in asleep._held))
        asleep.fetch()
        assert [weight.tolist() for weight in weights] == [[0, 1, 2, 3, 4, 5], [0, 1, 2]]
    assert used[0] == used[1]
