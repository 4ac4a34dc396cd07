"""The gated network in blocks is the module it stands in for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlep.engines.cpu import gated
from rlep.engines.cpu.gated import compute_gated_in_blocks
from tests.engines.learner.learner_cases import SIZES


def outcome(model: LlamaForCausalLM, ids: Tensor) -> list[Tensor]:
    """Logits and the gradients of every weight."""
    logits = model(input_ids=ids).logits
    return [logits.detach(), *torch.autograd.grad(logits.square().mean(), list(model.parameters()))]


@pytest.mark.parametrize("rows", [1, 7, 1000])  # of 3 * 9 tokens; the last block of 7 is shorter
def test_blocks_change_neither_logits_nor_gradients(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).double()
    ids = torch.arange(27).view(3, 9)
    wanted, names = outcome(model, ids), list(model.state_dict())
    monkeypatch.setattr(gated, "_BLOCK_BYTES", rows * model.config.intermediate_size * 8)
    compute_gated_in_blocks(model)
    assert all(hasattr(layer.mlp.forward, "func") for layer in model.model.layers)
    torch.testing.assert_close(outcome(model, ids), wanted, rtol=1e-12, atol=1e-14)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("change", [{"mlp_bias": True}, {"hidden_act": "gelu"}])
def test_other_networks_are_left_alone(change: dict[str, object]) -> None:
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | change)))
    compute_gated_in_blocks(model)
    assert not any("forward" in vars(layer.mlp) for layer in model.model.layers)
