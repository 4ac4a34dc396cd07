"""A learner rank at the shape of a real model: bytes at the peak of each phase, on a GPU or in shapes alone.

In shapes alone nothing has memory: torch's fake tensors go through the whole learner (FSDP2, the checkpointed layers, the
chunked head, the optimizer, host offload) among ranks of a fake process group, and the storages that would be alive are
counted. The ranks are on "CPUs" then, because a build without CUDA knows no other device; every branch that is for GPUs is
taken all the same. Storages count with the bytes that are asked for: memory within a kernel, and what the allocator
rounds up, are not seen. Host memory counts too, because a tensor on its way from host to "device" is not copied.
"""

from __future__ import annotations

import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config

from rlep.config.roles import ActorConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.output_head import CHUNK_BYTES, KEPT_BYTES
from rlep.engines.learner import head
from rlep.engines.learner import policy as policy_module
from rlep.engines.learner import rank as rank_module
from rlep.engines.learner.device_state import rank_mesh
from rlep.engines.learner.packed_row import largest_update
from rlep.engines.learner.policy import Policy, named_shards
from rlep.engines.learner.rank import LearnerRank
from rlep.plan.learner import plan_learner
from rlep.plan.model_shape import read_shape

from .hub_models import MODELS, qwen2

SHAPES = {
    "1.5B": MODELS["Qwen/Qwen2.5-1.5B-Instruct"],
    "7B": MODELS["Qwen/Qwen2.5-Math-7B"],
    "14B": MODELS["Qwen/Qwen2.5-14B-Instruct"],
    "32B": qwen2(64, 5120, 27_648, 152_064, 40, 8, 128, tied=False),
}
"""Of Qwen2.5."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Bytes that are held now and at their most since ``reset``."""

    held: Callable[[], int]
    peak: Callable[[], int]
    reset: Callable[[], None]


def config_of(name: str) -> Qwen2Config:
    """The configuration of one of ``SHAPES``."""
    shape = SHAPES[name]
    return Qwen2Config(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32_768,
    )


def run_shape(model: Path, config: Config, gauge: Gauge) -> dict[str, Any]:
    """Bytes of rank 0 in each phase of the largest update and after it, beside the plan's."""
    ranks = config.learner.ranks
    with mock.patch.object(policy_module, "read_weights", _fill):
        learner = LearnerRank(model, config, rank=0, world_size=ranks, meeting_point=f"file://{model}/meeting")
    with closing(learner):
        state, batch = gauge.held(), largest_update(ranks, config.learner.micro_batch_tokens, config.context)
        peaks = _peaks_by_phase(learner, batch, gauge)
        found = {"state_bytes": state, "peaks": peaks, "peak_bytes": max(peaks.values())}
        return found | (_on_the_gpu(learner) if torch.cuda.is_available() else {})


def _on_the_gpu(learner: LearnerRank) -> dict[str, float]:
    """What the allocator took for those peaks, what the process takes beside it, and what a rank holds while it sleeps."""
    reserved = torch.cuda.max_memory_reserved()
    started = time.perf_counter()
    learner.sleep()
    slept = time.perf_counter()
    free, whole = torch.cuda.mem_get_info()
    asleep = {"asleep_bytes": torch.cuda.memory_allocated(), "asleep_process_bytes": whole - free}
    learner.wake()
    torch.cuda.synchronize()
    woken = time.perf_counter()
    return {"reserved_bytes": reserved, **asleep, "sleep_s": slept - started, "wake_s": woken - slept}


def planned(model: Path, config: Config, *, with_host: bool) -> dict[str, int]:
    """The plan's figures for ``run_shape``; of the device alone unless ``with_host``."""
    plan = plan_learner(config, read_shape(model))
    host = 0 if with_host else plan.host_bytes
    shares = 0 if host else plan.asleep_bytes
    return {"planned_state_bytes": shares, "planned_peak_bytes": plan.peak_bytes - host}


def _peaks_by_phase(learner: LearnerRank, batch: Any, gauge: Gauge) -> dict[str, int]:
    peaks: dict[str, int] = {}
    phase = ""

    def enter(name: str) -> None:
        nonlocal phase
        if phase:
            peaks[phase] = max(peaks.get(phase, 0), gauge.peak())
        gauge.reset()
        phase = name

    step = learner._optimizer.step

    def stepping(index: int) -> object:
        enter("optimizer")
        return step(index)

    hooks = [
        learner._policy.register_forward_pre_hook(lambda *_: enter("forward"), prepend=True),
        learner._policy.register_forward_hook(lambda *_: enter("backward")),
    ]
    with mock.patch.object(learner._optimizer, "step", stepping):
        learner.update(batch, rollout=0)
    for hook in hooks:
        hook.remove()
    enter("score")
    learner.score(batch)
    enter("publication")
    for _ in learner._weights.gathered(learner.config.learner.compute_dtype):
        pass
    enter("")
    return peaks


def _fill(policy: Policy, _directory: Path) -> None:
    """Stand in for ``read_weights``: every update of them is finite, and no file is needed."""
    for _, shard in named_shards(policy):
        shard.to_local().detach().fill_(0.01)


def measure_shape(name: str, files: Sequence[Path], overrides: Sequence[str]) -> dict[str, Any]:
    """``run_shape`` of one of ``SHAPES`` under these config files, on the GPU where there is one, beside the plan's figures."""
    config = load_config(files, overrides)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        config_of(name).save_pretrained(model)
        if torch.cuda.is_available():
            measured = run_shape(model, config, gpu_gauge())
        else:
            with shapes_alone(config) as gauge:
                measured = run_shape(model, config, gauge)
        figures = measured | planned(model, config, with_host=not torch.cuda.is_available())
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: shapes alone, host memory included"
    error = figures["planned_peak_bytes"] / figures["peak_bytes"] - 1.0
    return {"shape": name, "device": device, "ranks": config.learner.ranks, **figures, "plan_error": error}


def gpu_gauge() -> Gauge:
    """What the allocator of the current GPU has given out."""
    return Gauge(torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)


class _Storages(TorchDispatchMode):
    """Counts the bytes of the storages of fake tensors that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, int] = {}
        """Address of a storage -> its bytes."""

    def reset(self) -> None:
        """Forget the peak so far."""
        self.peak = self.now

    def resized(self, storage: UntypedStorage) -> None:
        """Count a storage, where it is one of those that are counted, with its present size."""
        if storage._cdata in self._alive:
            self._count(storage._cdata, storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:  # a value that is asked for: false, or one
            return args[0].dtype != torch.bool and 1.0
        if func is aten.is_pinned.default:
            return True
        if func is aten._pin_memory.default:  # fake tensors have no pinned memory
            func, args, kwargs = aten.clone.default, args[:1], {}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(getattr(leaf, "_local_tensor", leaf))
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if tensor.device.type != "meta" and address not in self._alive:
            weakref.finalize(storage, self._gone, address)
            self._count(address, storage.nbytes())

    def _count(self, address: int, nbytes: int) -> None:
        self.now += nbytes - self._alive.get(address, 0)
        self._alive[address] = nbytes
        self.peak = max(self.peak, self.now)

    def _gone(self, address: int) -> None:
        self.now -= self._alive.pop(address)


class _NoWriter:
    """Stands in for the checkpoint writer, whose group is gloo's."""

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@contextmanager
def shapes_alone(config: Config) -> Iterator[Gauge]:
    """Within the block this process is rank 0 of ``config.learner.ranks``, and tensors have shapes and no memory."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    storages, resize = _Storages(), UntypedStorage.resize_

    def counted_resize(storage: UntypedStorage, nbytes: int) -> UntypedStorage:
        resize(storage, nbytes)
        storages.resized(storage)
        return storage

    def zeros(tensor: Tensor) -> np.ndarray[Any, Any]:
        return np.zeros(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    ranks = config.learner.ranks
    replaced: list[tuple[Any, str, Any]] = [
        (UntypedStorage, "resize_", counted_resize),
        (FakeTensor, "is_cuda", property(lambda _: True)),
        (FakeTensor, "numpy", zeros),
        (ActorConfig, "device", property(lambda _: "cpu")),
        (head, "CHUNK_BYTES", {"cpu": CHUNK_BYTES["cuda"]}),
        (head, "KEPT_BYTES", {"cpu": KEPT_BYTES["cuda"]}),
        (head, "_WIDE_SUMS", ("cpu",)),
        (head, "_spare", {}),
        (rank_module, "join_ranks", lambda *_: None),
        (rank_module, "BackgroundWriter", _NoWriter),
    ]
    with ExitStack() as undo:
        for owner, name, stand_in in replaced:
            undo.enter_context(mock.patch.object(owner, name, stand_in))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        mesh = rank_mesh(config.learner, ranks)  # of real numbers
        undo.enter_context(mock.patch.object(rank_module, "rank_mesh", return_value=mesh))
        undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        undo.enter_context(storages)
        yield Gauge(lambda: storages.now, lambda: storages.peak, storages.reset)
