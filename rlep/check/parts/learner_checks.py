"""Checks of the learner: attention, gradients over ranks and micro-batches, its state, the longest rows, the network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig

from rlep.check.finding import CheckSkipped
from rlep.check.parts.outcome import CheckFailed, call_all_apart
from rlep.check.parts.synthetic import Rig, scored
from rlep.config.schema import Config
from rlep.core.types import Float32Array, SequenceBatch
from rlep.core.variables import variables
from rlep.engines.learner.allocator import allocator_settings
from rlep.engines.learner.attention import layout_of, packed_attention
from rlep.engines.learner.device_state import current_device, join_ranks
from rlep.engines.learner.rank import LearnerRank

LENGTHS = (61, 40, 33, 17, 9, 3)
"""Ragged: tokens of the sequences in a row."""
ATTENTION_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest difference to float32, relative to the largest value."""
GRADIENT_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Relative difference of the gradient's norm between one micro-batch and three."""
NETWORK_BYTES, NETWORK_ROUNDS = 64 * 2**20, 5
MAKING_S = 240.0
"""For a process to import torch and build the model."""


def attention(rig: Rig, attend: Callable[..., tuple[Tensor, None]] = packed_attention) -> str:
    """Packed attention, forward and backward, against torch's in float32, sequence by sequence."""
    config = AutoConfig.from_pretrained(rig.model, trust_remote_code=False)
    heads = int(config.num_attention_heads)
    keys = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    device, dtype = current_device("cuda" if rig.cuda else "cpu"), getattr(torch, rig.dtype)
    torch.manual_seed(0)
    exact = [torch.randn(1, count, sum(LENGTHS), width, device=device) for count in (heads, keys, keys)]
    exact = [tensor.to(dtype).float().requires_grad_() for tensor in exact]
    rounded = [tensor.detach().to(dtype).requires_grad_() for tensor in exact]
    layout = layout_of(np.array(LENGTHS, dtype=np.int64), device)
    found = attend(nn.Module(), *rounded, None, layout=layout, scaling=width**-0.5)[0]
    wanted = _each_alone(exact)
    slope = torch.randn_like(wanted)
    found.backward(slope.to(dtype))
    wanted.backward(slope)
    pairs = {"output": (found.detach(), wanted.detach())}
    for name, ours, true in zip(("query", "key", "value"), rounded, exact, strict=True):
        assert ours.grad is not None
        assert true.grad is not None
        pairs[f"gradient of the {name}"] = (ours.grad, true.grad)
    differences = {name: float((a.float() - b).abs().max() / b.abs().max()) for name, (a, b) in pairs.items()}
    worst = max(differences, key=lambda name: differences[name])
    allowed = ATTENTION_TOLERANCE[rig.dtype]
    if not differences[worst] <= allowed:
        raise CheckFailed(
            f"{worst} differs from float32 by {differences[worst]:.2g} of its largest value, allowed {allowed:g}"
        )
    return f"{heads} heads, {keys} key heads of {width}, {rig.dtype}: within {differences[worst]:.1g} of float32"


def _each_alone(row: list[Tensor]) -> Tensor:
    parts = zip(*(tensor.split(LENGTHS, dim=2) for tensor in row), strict=True)
    alone = [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts]
    return torch.cat(alone, dim=2).transpose(1, 2)  # [1, N, heads, D]


def gradients(rig: Rig, learner: type[LearnerRank] = LearnerRank) -> str:
    """One micro-batch on one rank against three micro-batches on each of two ranks, where there are two devices."""
    lengths = [length for length in LENGTHS for _ in range(2)] * 2
    whole, part = sum(lengths), sum(lengths) // 6
    ranks = 2 if not rig.cuda or torch.cuda.device_count() > 1 else 1
    alone = _on_ranks(rig, learner, 1, rig.learner(micro_batch_tokens=whole), lengths)
    apart = _on_ranks(rig, learner, ranks, rig.learner(micro_batch_tokens=part), lengths)
    difference = abs(apart / alone - 1.0)
    if not difference <= GRADIENT_TOLERANCE[rig.dtype]:
        raise CheckFailed(
            f"the gradient's norm is {alone:.6g} from one micro-batch and {apart:.6g} from several on {ranks} "
            f"rank(s): they differ by {difference:.2g}, allowed {GRADIENT_TOLERANCE[rig.dtype]:g}"
        )
    return f"{ranks} rank(s), several micro-batches: norm {apart:.4g}, within {difference:.1g} of one micro-batch's"


def _on_ranks(rig: Rig, learner: type[LearnerRank], ranks: int, config: Config, lengths: list[int]) -> float:
    name = f"{ranks}-{config.learner.micro_batch_tokens}"
    make = partial(make_rank, rig, learner, name, config=config, ranks=ranks)
    calls = [(partial(make, rank=rank), rig.batch(lengths)) for rank in range(ranks)]
    found: float = call_all_apart(updated_norm, calls, deadline_s=MAKING_S)[0]
    return found


def updated_norm(make: Callable[[], LearnerRank], batch: SequenceBatch) -> float:
    """One rank's update; the norm of the gradient."""
    with closing(make()) as made:
        return made.update(scored(batch, made.score(batch)), rollout=0).grad_norm


def state(rig: Rig, learner: type[LearnerRank] = LearnerRank) -> str:
    """Sleep and wake, save and load: log-probs afterwards are the same to the bit."""
    batch = rig.batch(LENGTHS)
    with closing(make_rank(rig, learner, "state")) as made:
        made.update(scored(batch, made.score(batch)), rollout=0)
        before = made.score(batch)
        made.sleep()
        made.wake()
        _same(before, made.score(batch), "sleep and wake")
        made.save(rig.scratch / "checkpoint")
        made.written(MAKING_S)
    with closing(make_rank(rig, learner, "state-again")) as again:
        again.load(rig.scratch / "checkpoint")
        _same(before, again.score(batch), "save and load")
    return f"{len(before)} log-probs equal to the bit after sleep and wake, and after save and load"


def _same(before: Float32Array, after: Float32Array, what: str) -> None:
    different = int((before != after).sum())
    if different:
        largest = float(np.abs(before - after).max())
        raise CheckFailed(f"{what} changed {different} of {len(before)} log-probs, by up to {largest:.2g}")


def longest_rows(rig: Rig, learner: type[LearnerRank] = LearnerRank) -> str:
    """An update of two micro-batches, each as long as the configuration allows, twice."""
    rows = max(1, rig.config.learner.micro_batch_tokens // rig.context)
    batch = rig.batch([rig.context] * (2 * rows))
    try:
        with closing(make_rank(rig, learner, "longest")) as made:
            batch = scored(batch, made.score(batch))
            reports = [made.update(batch, rollout=rollout) for rollout in range(2)]
    except torch.OutOfMemoryError as error:
        raise CheckFailed(f"two layers do not fit with rows of {rows * rig.context:,} tokens: {error}") from None
    if skipped := next((report.skipped for report in reports if report.skipped), ""):
        raise CheckFailed(f"the update was skipped: {skipped}")
    cost = reports[1].cost
    memory = f", {cost.peak_memory_bytes / 2**30:.1f} GiB at most" if rig.cuda else ""
    return f"{2 * rows} sequences of {rig.context:,} tokens in {cost.seconds:.2f} s{memory}, two layers"


def network(rig: Rig, reduce: Callable[[Tensor], object] = dist.all_reduce) -> str:
    """The ranks' all-reduce of 64 MiB."""
    if rig.cuda and torch.cuda.device_count() < 2:
        raise CheckSkipped("there is one GPU")
    place = f"file://{rig.scratch}/meeting-network"
    calls = [(rig.learner(), rank, place, reduce) for rank in range(2)]
    seconds = call_all_apart(reduced, calls, deadline_s=MAKING_S)[0]
    return f"two ranks reduce {NETWORK_BYTES / 2**30 / seconds:.2f} GiB/s by {'NCCL' if rig.cuda else 'gloo'}"


def reduced(config: Config, rank: int, place: str, reduce: Callable[[Tensor], object]) -> float:
    """Seconds of one all-reduce; the sum is checked."""
    os.environ.update(allocator_settings(config.learner))
    join_ranks(config, rank, 2, place, None)
    device = current_device(config.learner.device)
    seconds = []
    for _ in range(NETWORK_ROUNDS):
        values = torch.full((NETWORK_BYTES // 4,), float(rank + 1), device=device)
        started = time.perf_counter()
        reduce(values)
        total = (float(values[0]), float(values[-1]))  # waits for the device
        seconds.append(time.perf_counter() - started)
        if total != (3.0, 3.0):
            raise CheckFailed(f"an all-reduce of 1 and 2 gave {total[0]:g} and {total[1]:g}, not 3")
    dist.destroy_process_group()
    return min(seconds)


def make_rank(
    rig: Rig,
    learner: type[LearnerRank],
    name: str,
    *,
    config: Config | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> LearnerRank:
    """One rank with the rig's configuration or another, and a run's allocator; ``name`` is of the group that it joins."""
    config = config or rig.learner()
    place = f"file://{rig.scratch}/meeting-{name}"
    with variables(allocator_settings(config.learner)):  # an engine that is started later is not to have it
        return learner(rig.model, config, rank=rank, world_size=ranks, meeting_point=place)
