"""Compiled layers: gradients of the padded reference, and one graph for rows of any length.

The compiler's own front end runs, its back end that writes kernels does not: that needs a C++ or CUDA compiler. Flash attention,
which a CPU has not, is replaced under torch's operator of that name, so that what is handed to it is checked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention import varlen

from rlep.engines import attention
from rlep.engines.learner import LearnerRank
from rlep.engines.options import PolicyOptions
from tests.engines.learner_cases import padded_gradients, ragged_batch, relative_error, write_tiny_model
from tests.engines.learner_process import gradients_of_first_update, single_ranks

Start = Callable[..., LearnerRank]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # torch's compiler looks at it, and hides this


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    with single_ranks(tmp_path, tmp_path) as begin:
        yield begin
    torch._dynamo.reset()


@pytest.mark.parametrize("flash", [False, True], ids=["causal", "flash"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "activation-checkpointing"])
@pytest.mark.parametrize("architecture", ["qwen2-tied", "qwen3", "mistral-window"])
def test_compiled_layers_have_the_gradients_of_the_padded_reference(
    architecture: str, checkpointing: bool, flash: bool, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda _: flash)
    model = write_tiny_model(tmp_path / "model", architecture)
    policy = PolicyOptions(compile=True, activation_checkpointing=checkpointing)
    for seed in (0, 1):
        batch = ragged_batch(seed=seed)
        learner = start(model, policy=policy, micro_batch_tokens=64)
        report = learner.update(batch, rollout=0)
        loss, gradients = padded_gradients(model, batch)
        assert report.loss == pytest.approx(loss, rel=1e-6)
        assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6


def test_rows_of_new_lengths_need_no_new_graph(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda _: True)
    learner = start(
        write_tiny_model(tmp_path / "model", "qwen2"), policy=PolicyOptions(compile=True), micro_batch_tokens=64
    )
    graphs = []
    for seed in range(12):
        learner.update(ragged_batch(seed=seed), rollout=seed)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[5] <= 4
    assert not counters["graph_break"]


def _seen(start: int, stop: int, causal: bool, window: list[int]) -> Tensor:
    """Which keys ``[T]`` each query ``[T]`` of a sequence sees, of flash attention's two ways to say it."""
    length = stop - start
    seen = torch.ones(length, length, dtype=torch.bool).tril(window[1] if window[1] >= 0 or causal else length)
    return seen if window[0] < 0 else seen.triu(-window[0])


def _weights(query: Tensor, key: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Probabilities ``[H, T, T]`` and the keys of every query head ``[H, T, D]``."""
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(0, 1)
    scores = query.transpose(0, 1) @ keys.transpose(1, 2) * scale
    return scores.masked_fill(~seen, -torch.inf).softmax(-1), keys


@varlen._varlen_attn.register_kernel("cpu")
def _forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, bounds, _, longest, _, causal, scale, window, *_ = given
    attended = torch.empty_like(query)
    cuts = bounds.tolist()
    assert max(stop - start for start, stop in pairwise(cuts)) == longest
    for start, stop in pairwise(cuts):
        rows = slice(start, stop)
        weights, _ = _weights(query[rows], key[rows], _seen(start, stop, causal, window), scale)
        values = value[rows].repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(0, 1)
        attended[rows] = (weights @ values).transpose(0, 1)
    return attended, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    upstream, query, key, value, _, _, bounds, _, _, _, causal, _, scale, window = given
    grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    cuts, group = bounds.tolist(), query.shape[1] // key.shape[1]
    for start, stop in pairwise(cuts):
        rows = slice(start, stop)
        weights, keys = _weights(query[rows], key[rows], _seen(start, stop, causal, window), scale)
        above = upstream[rows].transpose(0, 1)  # [H, T, D]
        grad = above @ value[rows].repeat_interleave(group, 1).transpose(0, 1).transpose(1, 2)
        scores = weights * (grad - (grad * weights).sum(-1, keepdim=True)) * scale
        grads[0][rows] = (scores @ keys).transpose(0, 1)
        for into, by_head in ((grads[1], scores.mT @ query[rows].transpose(0, 1)), (grads[2], weights.mT @ above)):
            into[rows] = by_head.unflatten(0, (-1, group)).sum(1).transpose(0, 1)
    return grads[0], grads[1], grads[2]
