"""Compiled layers: gradients of the padded reference, and a few graphs for rows of any length.

The compiler's own front end runs, its back end that writes kernels only in the slow test: it takes a minute. Flash attention,
which a CPU has not, is replaced under torch's operator of that name, so that what is handed to it is checked too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention import varlen

from rlep.engines.learner import attention
from rlep.engines.learner.rank import LearnerRank
from tests.engines.learner.learner_cases import padded_gradients, ragged_batch, relative_error, write_tiny_model
from tests.engines.learner.learner_process import gradients_of_first_update, single_ranks

Start = Callable[..., LearnerRank]

# torch's compiler looks at it, and hides the warning.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    with single_ranks(tmp_path, tmp_path) as begin:
        yield begin
    torch._dynamo.reset()


@pytest.mark.parametrize("flash", [False, True], ids=["each-alone", "flash"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "activation-checkpointing"])
@pytest.mark.parametrize("architecture", ["qwen2-tied", "qwen3", "mistral-window"])
def test_compiled_layers_have_the_gradients_of_the_padded_reference(
    architecture: str, checkpointing: bool, flash: bool, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda _: flash)
    model = write_tiny_model(tmp_path / "model", architecture)
    policy = {"compile": True, "activation_checkpointing": checkpointing}
    for seed in (0, 1):
        batch = ragged_batch(seed=seed)
        learner = start(model, learner=policy, micro_batch_tokens=64)
        report = learner.update(batch, rollout=0)
        loss, gradients = padded_gradients(model, batch)
        assert report.loss == pytest.approx(loss, rel=1e-6)
        assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    if flash:  # the other attention is not compiled, and a checkpointed layer around it is not either
        assert counters["stats"]["unique_graphs"] > 0
        assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_compiler_s_kernels_have_the_gradients_of_the_padded_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    torch._dynamo.reset()
    model = write_tiny_model(tmp_path / "model", "qwen2-tied")
    with single_ranks(tmp_path, tmp_path) as begin:
        for seed in (0, 1):
            batch = ragged_batch(seed=seed)
            learner = begin(model, learner={"compile": True}, micro_batch_tokens=64)
            report = learner.update(batch, rollout=0)
            loss, gradients = padded_gradients(model, batch)
            assert report.loss == pytest.approx(loss, rel=1e-6)
            assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6
    torch._dynamo.reset()
    assert list((tmp_path / "kernels").rglob("*.so"))


def test_rows_of_new_lengths_need_no_new_graph(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_has_flash", lambda _: True)
    learner = start(write_tiny_model(tmp_path / "model", "qwen2"), learner={"compile": True}, micro_batch_tokens=64)
    graphs = []
    for seed in range(12):
        learner.update(ragged_batch(seed=seed), rollout=seed)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[5] <= 4
    assert not counters["graph_break"]


def _by_query_head(shared: Tensor, query: Tensor) -> Tensor:
    """The key or value head ``[T, K, D]`` of every query head, ``[H, T, D]``."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], 1).transpose(0, 1)


def _weights(query: Tensor, key: Tensor, scale: float, window: list[int]) -> Tensor:
    """Probabilities ``[H, T, T]`` over the keys that flash attention's ``window`` (before, after; -1 is all) leaves."""
    before, after = window
    assert after == 0
    seen = torch.ones(len(query), len(query), dtype=torch.bool).tril()
    scores = query.transpose(0, 1) @ _by_query_head(key, query).mT * scale
    return scores.masked_fill(~(seen if before < 0 else seen.triu(-before)), -torch.inf).softmax(-1)


@varlen._varlen_attn.register_kernel("cpu")
def _forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, bounds, _, longest, _, _, scale, window, *_ = given
    attended, cuts = torch.empty_like(query), bounds.tolist()
    assert max(stop - start for start, stop in pairwise(cuts)) == longest
    for start, stop in pairwise(cuts):
        rows = slice(start, stop)
        weights = _weights(query[rows], key[rows], scale, window)
        attended[rows] = (weights @ _by_query_head(value[rows], query)).transpose(0, 1)
    return attended, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    upstream, query, key, value, _, _, bounds, _, _, _, _, _, scale, window = given
    grad_query, grad_key, grad_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
    for start, stop in pairwise(bounds.tolist()):
        rows = slice(start, stop)
        weights = _weights(query[rows], key[rows], scale, window)
        above = upstream[rows].transpose(0, 1)  # [H, T, D]
        grad = above @ _by_query_head(value[rows], query).mT
        scores = weights * (grad - (grad * weights).sum(-1, keepdim=True)) * scale
        grad_query[rows] = (scores @ _by_query_head(key[rows], query)).transpose(0, 1)
        for into, by_head in ((grad_key, scores.mT @ query[rows].transpose(0, 1)), (grad_value, weights.mT @ above)):
            into[rows] = by_head.unflatten(0, (key.shape[1], -1)).sum(1).transpose(0, 1)
    return grad_query, grad_key, grad_value
