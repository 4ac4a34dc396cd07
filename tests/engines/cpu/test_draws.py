"""Numbers drawn ahead: the tokens that vLLM's own sampler draws, in any company, and as often as they are probable."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.engines.sampler.sampler_cases import VOCABULARY

if TYPE_CHECKING:
    from rlep.engines.cpu.draws import DrawnAhead

pytestmark = pytest.mark.timeout(300)


STEPS = 200  # numbers are drawn anew three times


@pytest.fixture
def ours(environment: None) -> DrawnAhead:
    """In this process, with vLLM's kernels."""
    importlib.import_module("vllm._custom_ops")
    from rlep.engines.cpu.draws import AHEAD, DrawnAhead

    assert STEPS > 3 * AHEAD
    return DrawnAhead()


def generators(seeds: range) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_the_tokens_are_those_of_vllm_whoever_else_is_in_the_batch(ours: DrawnAhead) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    theirs = TopKTopPSampler("raw_logprobs")
    own, same = generators(range(12)), generators(range(12))
    company = np.random.default_rng(0)
    for step in range(STEPS):
        rows = company.permutation(12)[: company.integers(1, 13)]
        logits = 3 * torch.randn(14, VOCABULARY, generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)  # the last rows have no seed
        expected, _ = theirs.forward_cpu(logits.clone(), {i: same[row] for i, row in enumerate(rows)}, None, None)
        torch.manual_seed(step)
        drawn, _ = ours.forward_cpu(logits.clone(), {i: own[row] for i, row in enumerate(rows)}, None, None)
        assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (4, None), (None, 0.8), (5, 0.9)])
def test_tokens_come_as_often_as_they_are_probable(ours: DrawnAhead, top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor([2.0, 1.5, 1.2, 0.7, 0.1, -0.4, -1.0, -1.3])
    probable = logits.double().softmax(0).numpy()
    if top_k is not None:
        probable[top_k:] = 0
        probable /= probable.sum()
    if top_p is not None:  # the fewest that reach it; the logits fall
        probable[int(np.searchsorted(np.cumsum(probable), top_p)) + 1 :] = 0
        probable /= probable.sum()
    rows, seeded = 200, dict(enumerate(generators(range(200))))
    k = None if top_k is None else torch.full((rows,), top_k)
    p = None if top_p is None else torch.full((rows,), top_p)
    counts = np.zeros(len(logits))
    for _ in range(STEPS):
        tokens, _ = ours.forward_cpu(logits.repeat(rows, 1), seeded, k, p)
        counts += np.bincount(tokens.numpy(), minlength=len(logits))
    assert counts[probable == 0].sum() == 0
    expected = probable[probable > 0] * rows * STEPS
    chi_square = float(((counts[probable > 0] - expected) ** 2 / expected).sum())
    assert chi_square < 29.9  # exceeded once in 10,000 with 7 degrees of freedom, rarer with fewer


def test_numbers_of_requests_that_ended_are_forgotten(ours: DrawnAhead) -> None:
    seeded = generators(range(5))
    ours.forward_cpu(torch.zeros(5, VOCABULARY), dict(enumerate(seeded)), None, None)
    assert len(ours._drawn) == 5
    del seeded[1:]
    assert len(ours._drawn) == 1


def test_only_the_sampler_of_a_cpu_is_replaced_and_that_of_vllms_gpu_model_runner_stays(environment: None) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    from rlep.engines.cpu.draws import DrawingWorkerExtension, DrawnAhead

    def after(sampler: object) -> object:
        worker = SimpleNamespace(model_runner=SimpleNamespace(sampler=sampler))
        DrawingWorkerExtension.draw_ahead(worker)  # type: ignore[arg-type]
        return sampler

    second = Sampler.__new__(Sampler)  # what vLLM takes on GPUs; it cannot be built without one
    assert vars(after(second)) == {}
    first = {kind: SimpleNamespace(topk_topp_sampler=TopKTopPSampler("raw_logprobs")) for kind in ("cpu", "cuda")}
    for kind, sampler in first.items():
        sampler.topk_topp_sampler.forward = getattr(sampler.topk_topp_sampler, f"forward_{kind}")
        after(sampler)
    assert {kind: type(sampler.topk_topp_sampler) for kind, sampler in first.items()} == {
        "cpu": DrawnAhead,
        "cuda": TopKTopPSampler,
    }
