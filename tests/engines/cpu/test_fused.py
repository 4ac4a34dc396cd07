"""Layers with replaced forward functions are the layers of transformers, on every architecture."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlep.engines.cpu.fused import _RootMeanSquare, fuse
from rlep.engines.learner.attention import PACKED_ATTENTION, layout_of
from tests.engines.learner.learner_cases import ARCHITECTURES, VOCABULARY

LENGTHS = np.array([17, 16, 9, 2], dtype=np.int64)


def model_of(architecture: str, attention: str) -> PreTrainedModel:
    """In float64, with weights (of norms and biases, too) that are all random."""
    config = deepcopy(ARCHITECTURES[architecture])  # it will name the attention
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def outcome(model: PreTrainedModel, hidden: Tensor) -> list[Tensor]:
    """The last hidden states and the gradients of every weight."""
    weights = [parameter for name, parameter in model.base_model.named_parameters() if "embed" not in name]
    pull = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1)).double()
    return [hidden.detach(), *torch.autograd.grad(hidden, weights, pull)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_of_sequences_is_each_of_them_in_the_plain_model(architecture: str, fused: bool) -> None:
    tokens = torch.randint(VOCABULARY, (1, int(LENGTHS.sum())), generator=torch.Generator().manual_seed(2))
    plain, packed = model_of(architecture, "eager"), model_of(architecture, PACKED_ATTENTION)
    alone = [plain.base_model(part).last_hidden_state for part in tokens.split(LENGTHS.tolist(), dim=1)]
    if fused:
        fuse(packed)
        replaced = [name for name, module in packed.named_modules() if "forward" in vars(module)]
        assert len(replaced) == 1 + 2 * (6 if architecture == "qwen3" else 4)  # two layers and the last norm
    layout = layout_of(LENGTHS, torch.device("cpu"))
    row = packed.base_model(tokens, position_ids=layout.positions, use_cache=False, layout=layout).last_hidden_state
    for got, wanted in zip(outcome(packed, row), outcome(plain, torch.cat(alone, dim=1)), strict=True):
        # transformers takes norms and softmax in float32, whatever the model's type.
        assert float((got - wanted).norm() / wanted.norm()) < 1e-5


def test_the_norms_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).double().requires_grad_() for shape in ((5, 6), (6,)))
    assert torch.autograd.gradcheck(lambda *changed: _RootMeanSquare.apply(*changed, 1e-2), (x, weight))
