"""A transformers causal LM as FSDP2 shards: packed rows in, log-probs of response tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from rlep.core.errors import ModelError
from rlep.engines.cpu.fused import fuse
from rlep.engines.learner.attention import PACKED_ATTENTION
from rlep.engines.learner.device_state import current_device
from rlep.engines.learner.head import token_logprobs
from rlep.engines.learner.options import PolicyOptions
from rlep.engines.learner.packed_row import PackedRow

_OTHER_HEADS = ("logit_scale", "logits_scaling", "final_logit_softcapping")


class Policy(nn.Module):
    """The FSDP root: the whole way from token ids to log-probs, so that one forward call gathers every weight it needs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, row: PackedRow, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probs fp32 ``[R]`` of the row's response tokens and their distributions' entropies fp32 ``[R]`` (or ``[0]``)."""
        outputs = self.model.base_model(
            input_ids=row.tokens.unsqueeze(0),
            position_ids=row.layout.positions,
            use_cache=False,
            layout=row.layout,
        )
        hidden = outputs.last_hidden_state[0].index_select(0, row.predictors)  # [R, d]
        head = self.model.get_output_embeddings()
        return token_logprobs(hidden, head.weight, row.targets, entropy=entropy)


def build_policy(directory: Path, options: PolicyOptions, mesh: DeviceMesh) -> Policy:
    """The model of a Hugging Face directory, sharded over ``mesh``; each rank reads only its own part of the weights.

    Dropout is off: log-probs must be those of the generator.

    Raises:
        ModelError: the directory holds no causal LM, lacks weights, or the architecture needs what is not computed here.
    """
    try:
        config = AutoConfig.from_pretrained(directory)
        with _parameters_on_meta():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=PACKED_ATTENTION)
    except (OSError, ValueError) as error:
        raise ModelError(f"{directory} is not a causal language model that transformers knows: {error}") from error
    _check_supported(config, model)
    if mesh.device_type == "cpu" and options.dtype == "float32" and not options.compile:
        fuse(model)
    device = current_device(mesh.device_type)
    policy = Policy(model).eval()
    _shard(policy, options, mesh)
    _materialise(policy, torch.device("cpu") if options.cpu_offload else device, device)
    read_weights(policy, directory)
    return policy


def named_shards(policy: Policy) -> Iterator[tuple[str, DTensor]]:
    """Every distinct parameter under its Hugging Face name, in a fixed order; tied weights come once."""
    reshard(policy)
    for wrapped_name, parameter in policy.model.named_parameters():
        name = wrapped_name.replace("_checkpoint_wrapped_module.", "")
        if not isinstance(parameter, DTensor):
            raise TypeError(f"{name} is not sharded")
        yield name, parameter


def reshard(policy: Policy) -> None:
    """Free gathered weights. Without a backward pass FSDP keeps them, and would go on using them after a change of the shards."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def read_weights(policy: Policy, directory: Path) -> None:
    """Fill this rank's shards from the directory's safetensors files, whatever float dtype they hold.

    Raises:
        ModelError: a weight is missing or has another shape, or a file cannot be read.
    """
    missing = dict(named_shards(policy))
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in missing.keys() & set(file.keys()):
                    _read_shard(name, missing.pop(name), file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read weights from {path}: {error}") from error
    if missing:
        first = ", ".join(sorted(missing)[:4])
        raise ModelError(f"{directory} lacks {len(missing)} weights of its model in safetensors files: {first}")


def _read_shard(name: str, parameter: DTensor, file: safe_open) -> None:
    stored = file.get_slice(name)
    if tuple(stored.get_shape()) != tuple(parameter.shape):
        raise ModelError(
            f"weight {name} has shape {stored.get_shape()}, the model's configuration {list(parameter.shape)}"
        )
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    local = parameter.to_local().detach()
    if local.numel():
        part = stored[offset[0] : offset[0] + shape[0]] if shape else stored[...]
        local.copy_(part)


def _check_supported(config: PreTrainedConfig, model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{config.model_type}: the learner needs an output embedding without bias")
    changed = [name for name in _OTHER_HEADS if getattr(config, name, None) not in (None, 1, 1.0)]
    if changed:
        raise ModelError(
            f"{config.model_type}: {', '.join(changed)} changes the logits; the learner does not compute that"
        )


def _shard(policy: Policy, options: PolicyOptions, mesh: DeviceMesh) -> None:
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, options.dtype), reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()
    layers = policy.model.base_model.layers
    for index in range(len(layers)):
        if options.activation_checkpointing:
            # No dropout, hence no random state to carry into the recomputation.
            layers[index] = checkpoint_wrapper(layers[index], preserve_rng_state=False)
        layer = layers[index]
        if options.compile:
            layer.compile()
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=options.reshard_after_forward,
            mp_policy=precision,
            offload_policy=offload,
        )
    root = fully_shard(policy, mesh=mesh, reshard_after_forward=False, mp_policy=precision, offload_policy=offload)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the global token count, so gradients are plain sums over ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _materialise(policy: Policy, home: torch.device, device: torch.device) -> None:
    """Give the shards memory at ``home``. Buffers (rotary frequencies) were computed at construction and go to ``device``."""
    buffers = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    policy.to_empty(device=home)
    for name, computed in buffers.items():
        owner, _, leaf = name.rpartition(".")
        policy.get_submodule(owner).register_buffer(leaf, computed.to(device), persistent=False)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters made inside take no memory; buffers stay real, because no file holds them."""
    register = nn.Module.register_parameter

    def register_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register
