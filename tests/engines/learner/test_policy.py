"""Packed rows give every sequence the log-probs it has alone, on every architecture, without a mask or full logits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, Qwen3Config

from rlep.config.roles import LearnerConfig
from rlep.core.errors import ModelError
from rlep.core.output_head import CHUNK_BYTES, KEPT_BYTES
from rlep.engines.learner import attention, head
from rlep.engines.learner.attention import layout_of
from rlep.engines.learner.head import token_logprobs
from rlep.engines.learner.packed_row import pack_row
from rlep.engines.learner.policy import build_policy, named_shards, read_weights
from tests.engines.learner.learner_cases import ARCHITECTURES, SIZES, padded_logprobs, ragged_batch, write_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_packed_row_scores_each_sequence_as_if_alone(architecture: str, mesh: DeviceMesh, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, architecture)
    batch = ragged_batch(sequences=24)
    row = pack_row(batch, np.arange(24), CPU)
    assert row.layout.longest > 4 * row.layout.lengths[-1]  # so that keys of several lengths are laid out
    policy = build_policy(directory, LearnerConfig(), mesh)
    with torch.no_grad():
        logprobs, entropies = policy(row, True)
        alone = AutoModelForCausalLM.from_pretrained(directory).eval()
        wanted = [torch.cat(values) for values in padded_logprobs(alone, batch)]
    np.testing.assert_allclose(logprobs, wanted[0][torch.from_numpy(row.responses)], atol=1e-5)
    np.testing.assert_allclose(entropies, wanted[1][torch.from_numpy(row.responses)], atol=1e-5)


def test_with_activation_checkpointing_autograd_saves_the_input_of_each_layer_alone(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    row = pack_row(ragged_batch(), np.arange(12), CPU)

    def saved_bytes(layers: int, checkpointing: bool) -> int:
        config = Qwen3Config(**(SIZES | {"num_hidden_layers": layers}))
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        policy = build_policy(tmp_path, LearnerConfig(activation_checkpointing=checkpointing), mesh)
        saved: list[int] = []

        def count(tensor: Tensor) -> Tensor:
            saved.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            policy(row, False)
        return sum(saved)

    def of_two_layers(checkpointing: bool) -> int:
        return saved_bytes(4, checkpointing) - saved_bytes(2, checkpointing)

    inputs = 2 * 4 * len(row.tokens) * SIZES["hidden_size"]
    assert of_two_layers(checkpointing=True) == inputs
    assert of_two_layers(checkpointing=False) > 5 * inputs


def test_shared_key_heads_do_not_keep_torch_from_attention_in_linear_memory(
    mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For float32 on a GPU only torch's kernel that holds all scores takes fewer key heads than query heads.
    attend = Mock(side_effect=scaled_dot_product_attention)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", attend)
    policy = build_policy(write_tiny_model(tmp_path, "qwen3"), LearnerConfig(), mesh)
    policy(pack_row(ragged_batch(), np.arange(12), CPU), False)
    assert attend.call_count == 2 * 12  # layers, sequences
    for call in attend.call_args_list:
        query, key, value = call.args
        assert query.shape == key.shape == value.shape
        assert "enable_gqa" not in call.kwargs


@pytest.mark.parametrize("lengths", [[], [3, 4], [2, 0]])
def test_a_row_must_be_sorted_and_without_empty_sequences(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="longest first"):
        layout_of(np.array(lengths, dtype=np.int64), CPU)


def test_a_temperature_by_hand() -> None:
    # Logits (0, 2 ln 3) at temperature 2 are (0, ln 3): probabilities 1/4 and 3/4. d log p_0 / dh = (0 - 3/4 · 2 ln 3) / 2.
    slope = 2 * math.log(3)
    hidden, weight = torch.ones(2, 1, requires_grad=True), torch.tensor([[0.0], [slope]], requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, weight, torch.tensor([0, 1]), entropy=True, temperature=2.0)
    np.testing.assert_allclose(logprobs.detach().exp(), [0.25, 0.75], rtol=1e-6)
    np.testing.assert_allclose(entropies.detach(), [math.log(4) - 0.75 * math.log(3)] * 2, rtol=1e-6)
    of_hidden, of_weight = torch.autograd.grad(logprobs[0], (hidden, weight))
    np.testing.assert_allclose(of_hidden[:, 0], [-0.75 * slope / 2, 0.0], rtol=1e-6)
    np.testing.assert_allclose(of_weight[:, 0], [0.75 / 2, -0.75 / 2], rtol=1e-6)


@pytest.mark.parametrize(("temperature", "gradient"), [(2.0, [0.0, 0.0]), (1.0, [0.15, -0.15])])
def test_the_score_has_mean_zero_only_at_the_temperature_that_was_sampled_at(
    temperature: float, gradient: list[float]
) -> None:
    # Tokens are drawn with 1/4 and 3/4. At temperature 1 the policy has 1/10 and 9/10, and Σ μ(a) ∇ log π(a) = μ - π.
    weight = torch.tensor([[0.0], [2 * math.log(3)]], requires_grad=True)
    logprobs, _ = token_logprobs(torch.ones(2, 1), weight, torch.tensor([0, 1]), entropy=False, temperature=temperature)
    (found,) = torch.autograd.grad(logprobs @ torch.tensor([0.25, 0.75]), weight)
    np.testing.assert_allclose(found[:, 0], gradient, atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunked_log_probs_and_entropies_have_the_gradients_of_a_full_log_softmax(
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 3 * 4 * 11)  # three rows of an 11-word vocabulary: chunks of 3, 3 and 1
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 10, 3, 3, 7, 1, 9])
    pull = torch.randn(2, 7, generator=generator)
    scores = (hidden @ weight.t() / temperature).log_softmax(-1)
    chosen, entropy = scores.gather(1, targets[:, None]).squeeze(1), -(scores.exp() * scores).sum(1)
    wanted = torch.autograd.grad((chosen * pull[0] + entropy * pull[1]).sum(), (hidden, weight))
    logprobs, entropies = token_logprobs(hidden, weight, targets, entropy=True, temperature=temperature)
    got = torch.autograd.grad((logprobs * pull[0] + entropies * pull[1]).sum(), (hidden, weight))
    torch.testing.assert_close((logprobs, entropies, *got), (chosen, entropy, *wanted), rtol=1e-5, atol=1e-6)


def test_log_probs_of_tokens_that_fp32_gives_no_probability_are_exact() -> None:
    hidden = torch.tensor([[300.0], [300.0], [1.0]], requires_grad=True)
    logprobs, _ = token_logprobs(hidden, torch.tensor([[1.0], [0.0], [0.5]]), torch.tensor([1, 0, 2]), entropy=False)
    # Beside e^300 the others vanish; e, 1 and √e.
    wanted = [-300.0, 0.0, 0.5 - np.log(np.e + 1.0 + np.e**0.5)]
    np.testing.assert_allclose(logprobs.detach(), wanted, rtol=1e-6)
    (gradient,) = torch.autograd.grad(logprobs[0], hidden)
    np.testing.assert_allclose(gradient[0], [-1.0], rtol=1e-6)  # of z_1 - z_0 in the hidden state


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("room", [0, 5, 9])  # in rows, for chunks of 3, 3 and 1: none, the first, all
def test_kept_logits_give_the_gradient_of_computing_them_again(
    room: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 3 * 4 * 11)
    monkeypatch.setitem(KEPT_BYTES, "cpu", room * 4 * 11)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    targets, pull = torch.tensor([0, 10, 3, 3, 7, 1, 9]), torch.randn(7, generator=generator)
    wanted = (hidden @ weight.t() / temperature).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    logprobs, _ = token_logprobs(hidden, weight, targets, entropy=True, temperature=temperature)
    torch.testing.assert_close(logprobs, wanted, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad((values * pull).sum(), (hidden, weight)) for values in (logprobs, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coefficient", [None, 0.0])
def test_entropies_that_are_only_looked_at_leave_the_gradient_as_it_is_to_the_bit(coefficient: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 10, 3, 3, 7, 1, 9])
    alone, _ = token_logprobs(hidden, weight, targets, entropy=False)
    wanted = torch.autograd.grad(alone.square().sum(), (hidden, weight))
    logprobs, entropies = token_logprobs(hidden, weight, targets, entropy=True)
    loss = logprobs.square().sum() + (0.0 if coefficient is None else coefficient * entropies.detach().sum())
    assert all(map(torch.equal, torch.autograd.grad(loss, (hidden, weight)), wanted))
    assert torch.equal(logprobs, alone)


def test_the_entropy_alone_has_a_gradient() -> None:
    hidden, weight = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[1.0], [0.0]])
    _, entropies = token_logprobs(hidden, weight, torch.tensor([0]), entropy=True)
    (gradient,) = torch.autograd.grad(entropies.sum(), hidden)
    # Two classes with logits (z, 0) and p = sigmoid(z): H' = -z p (1 - p), at z = 1 that is -0.196612.
    assert gradient.item() == pytest.approx(-0.196612, abs=1e-6)


@pytest.fixture
def wide_sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A CPU that multiplies bfloat16 matrices into fp32 ones as a GPU does; the names of the kernels that were called."""
    called: list[str] = []

    def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        called.append("mm")
        assert left.dtype == right.dtype == torch.bfloat16
        return left.to(dtype) @ right.to(dtype)

    def add_product(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, *, out: Tensor) -> Tensor:
        called.append("addmm")
        assert left.dtype == right.dtype == torch.bfloat16
        assert out.data_ptr() == total.data_ptr()  # no second one
        return out.copy_(total + left.to(dtype) @ right.to(dtype))

    monkeypatch.setattr(head, "_WIDE_SUMS", ("cpu",))
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", product, "CPU")
    library.impl("addmm.dtype_out", add_product, "CPU")
    yield called
    library._destroy()


def test_products_that_are_added_up_in_place_give_the_gradients_of_a_full_log_softmax(
    wide_sums: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 3 * 4 * 11)  # 7 rows in chunks of 3, 3 and 1
    monkeypatch.setitem(KEPT_BYTES, "cpu", 0)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 5, generator=generator).bfloat16().requires_grad_() for n in (7, 11))
    targets, pull = torch.tensor([0, 10, 3, 3, 7, 1, 9]), torch.randn(7, generator=generator)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    scores = (exact[0] @ exact[1].t()).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    logprobs, _ = token_logprobs(hidden, weight, targets, entropy=False)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), scores, rtol=1e-6, atol=1e-6)  # no rounding to bfloat16 between
    got = torch.autograd.grad((logprobs * pull).sum(), (hidden, weight))
    wanted = torch.autograd.grad((scores * pull).sum(), exact)
    for gradient, true in zip(got, wanted, strict=True):  # bfloat16 keeps 8 bits: 2^-8 of the largest
        assert float((gradient.double() - true).abs().max()) < float(true.abs().max()) / 128
    assert wide_sums == ["mm"] * 3 + ["mm", "addmm"] * 3


def test_log_probs_of_a_large_vocabulary_never_hold_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 50_000 * 4)
    monkeypatch.setitem(KEPT_BYTES, "cpu", 8 * 50_000 * 4)
    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(50_000, 4, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        token_logprobs(hidden, weight, torch.arange(64), entropy=False)[0].sum().backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 64 * 50_000 * 4 / 4  # a quarter of the fp32 logits of all 64 tokens


def test_a_half_precision_checkpoint_becomes_float32_master_weights(mesh: DeviceMesh, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "qwen2-tied")
    stored = {name: tensor.bfloat16() for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(stored, directory / "model.safetensors")
    for name, shard in named_shards(build_policy(directory, LearnerConfig(), mesh)):
        assert shard.dtype == torch.float32
        assert torch.equal(shard.full_tensor().detach(), stored.pop(name).float())
    assert not stored


def test_bfloat16_compute_stays_near_float32(mesh: DeviceMesh, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "qwen2-tied")
    row = pack_row(ragged_batch(), np.arange(12), CPU)
    with torch.no_grad():
        exact = build_policy(directory, LearnerConfig(), mesh)(row, False)[0]
        rounded = build_policy(directory, LearnerConfig(dtype="bfloat16"), mesh)(row, False)[0]
    assert rounded.dtype == torch.float32
    # bfloat16 keeps 8 bits: some difference must show, and it is a small part of log-probs of about -4.
    assert 1e-4 < float((rounded - exact).abs().max()) < 0.3


def test_a_checkpoint_that_lacks_weights_is_refused_by_name(mesh: DeviceMesh, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "llama")
    stored = load_file(directory / "model.safetensors")
    del stored["model.norm.weight"]
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks 1 weights .*model\.norm\.weight"):
        build_policy(directory, LearnerConfig(), mesh)


def test_weights_of_another_shape_are_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    policy = build_policy(write_tiny_model(tmp_path / "a", "qwen2"), LearnerConfig(), mesh)
    other = write_tiny_model(tmp_path / "b", "qwen2")
    stored = load_file(other / "model.safetensors")
    stored["lm_head.weight"] = torch.zeros(38, 32)
    save_file(stored, other / "model.safetensors")
    with pytest.raises(ModelError, match=r"lm_head\.weight has shape \[38, 32\].*\[37, 32\]"):
        read_weights(policy, other)


@pytest.mark.parametrize(("dtype", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")])
def test_quantised_weights_are_not_taken_without_their_scales(
    dtype: torch.dtype, name: str, mesh: DeviceMesh, tmp_path: Path
) -> None:
    directory = write_tiny_model(tmp_path, "llama")
    stored = load_file(directory / "model.safetensors")
    quantised = "model.layers.0.mlp.up_proj.weight"
    stored[quantised] = stored[quantised].to(dtype)
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(ModelError, match=rf"weight {quantised} is stored as {name}, .*: take the unquantised model"):
        build_policy(directory, LearnerConfig(), mesh, frozen=True)


def test_a_torn_weights_file_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "llama")
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot read weights"):
        build_policy(directory, LearnerConfig(), mesh)


@pytest.mark.parametrize("content", [None, {}, {"model_type": "no-such-model"}, {"model_type": "vit"}])
def test_a_directory_without_a_causal_model_is_refused(
    content: dict[str, str] | None, mesh: DeviceMesh, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=str(tmp_path)):
        build_policy(tmp_path, LearnerConfig(), mesh)


@pytest.mark.parametrize(
    ("config", "reason"),
    [(Gemma2Config(**SIZES), "final_logit_softcapping"), (CohereConfig(**SIZES, logit_scale=0.25), "logit_scale")],
)
def test_architectures_whose_logits_would_come_out_wrong_are_refused(
    config: Gemma2Config, reason: str, mesh: DeviceMesh, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        build_policy(tmp_path, LearnerConfig(), mesh)
