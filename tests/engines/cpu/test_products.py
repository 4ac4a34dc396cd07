"""Products through oneDNN are torch's own, with its gradients, and where oneDNN does not compute them torch does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rlep.engines import torch_private
from rlep.engines.cpu import products
from rlep.engines.cpu.products import linear, product

OLD, NEW = 5, 7


def operands(dtype: torch.dtype, rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, OLD), (NEW, OLD), (NEW,)]
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_layer_has_torchs_values_and_gradients(
    dtype: torch.dtype, known: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch_private.HAS_ONEDNN_LINEAR  # the pinned torch has it, so that the other path is what the patch gives
    monkeypatch.setattr(products, "HAS_ONEDNN_LINEAR", known)
    given = [tensor.requires_grad_() for tensor in operands(dtype)][: 3 if biased else 2]
    pull = torch.arange(3.0 * NEW, dtype=dtype).view(3, NEW)
    results = [f(*given, *([] if biased else [None])) for f in (linear, functional.linear)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result, given, pull) for result in results))


def test_a_transposed_weight_a_part_of_a_row_and_no_rows_at_all() -> None:
    x, weight, _ = operands(torch.float32)
    half = weight[:, ::2].contiguous()
    torch.testing.assert_close(product(x[:, ::2], half), x[:, ::2] @ half.t())
    torch.testing.assert_close(product(torch.ones(2, NEW), weight.t()), torch.ones(2, NEW) @ weight)
    assert product(x[:0], weight).shape == (0, NEW)
