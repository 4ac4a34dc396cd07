"""A transformers causal LM as FSDP2 shards: packed rows in, log-probs of response tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from rlep.config.roles import LearnerConfig
from rlep.core.errors import ModelError
from rlep.engines.learner.attention import PACKED_ATTENTION
from rlep.engines.learner.device_state import current_device, rows_of
from rlep.engines.learner.head import token_logprobs
from rlep.engines.learner.lora import A, B, add_adapters, freeze, initialise
from rlep.engines.learner.packed_row import PackedRow
from rlep.engines.torch_private import parameters_on_meta
from rlep.engines.weights.weight_update import SAFETENSORS_NAMES

_OTHER_HEADS = ("logit_scale", "final_logit_softcapping")


class Policy(nn.Module):
    """The FSDP root: the whole way from token ids to log-probs, so that one forward call gathers every weight it needs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._divisor = float(getattr(model.config, "logits_scaling", None) or 1.0)
        """By which the architecture divides its logits (Granite)."""

    def forward(self, row: PackedRow, entropy: bool, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probs fp32 ``[R]`` of the row's response tokens and their distributions' entropies fp32 ``[R]`` (or ``[0]``)."""
        outputs = self.model.base_model(
            input_ids=row.tokens.unsqueeze(0),
            position_ids=row.layout.positions,
            use_cache=False,
            layout=row.layout,
        )
        hidden = outputs.last_hidden_state[0].index_select(0, row.predictors)  # [R, d]
        head = self.model.get_output_embeddings()
        divisor = temperature * self._divisor
        return token_logprobs(hidden, head.weight, row.targets, entropy=entropy, temperature=divisor)


def build_policy(
    directory: Path, learner: LearnerConfig, mesh: DeviceMesh, *, seed: int = 0, frozen: bool = False
) -> Policy:
    """The model of a Hugging Face directory, sharded over the last dimension of ``mesh`` and replicated over one before it.

    Each rank reads only its own part of the weights. ``seed`` is of the first values of adapters.
    A ``frozen`` model has none, and is held in the compute type: what it computes is the same to the bit.

    Dropout is off: log-probs must be those of the generator.

    Raises:
        ModelError: the directory holds no causal LM, lacks weights, or the architecture needs what is not computed here.
    """
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with parameters_on_meta():
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation=PACKED_ATTENTION, trust_remote_code=False
            )
    except (OSError, ValueError) as error:
        raise ModelError(f"{directory} is not a causal language model that transformers knows: {error}") from error
    _check_supported(config, model)
    adapted = learner.lora_rank > 0 and not frozen
    if frozen:
        freeze(model, learner)
    elif adapted:
        add_adapters(model, learner)
    device = current_device(mesh.device_type)
    policy = Policy(model).eval()
    _shard(policy, learner, mesh)
    _materialise(policy, torch.device("cpu") if learner.cpu_offload else device, device)
    read_weights(policy, directory)
    if adapted:
        initialise(tuple(named_shards(policy)), seed)
    return policy


def named_shards(policy: Policy) -> Iterator[tuple[str, DTensor]]:
    """Every distinct parameter under its Hugging Face name, in a fixed order; tied weights come once."""
    reshard(policy)
    for name, parameter in policy.model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise TypeError(f"{name} is not sharded")
        yield name, parameter


def reshard(policy: Policy) -> None:
    """Free gathered weights. Without a backward pass FSDP keeps them, and would go on using them after a change of the shards."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def read_weights(policy: Policy, directory: Path) -> None:
    """Fill this rank's shards from the directory's safetensors files, in whatever float dtype of 16 bits or more they are.

    Raises:
        ModelError: a weight is missing, quantised or of another shape, or a file cannot be read.
    """
    missing = {name: shard for name, shard in named_shards(policy) if not name.endswith((A, B))}
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
    if (dtype := stored.get_dtype()) not in SAFETENSORS_NAMES.values():  # it would be taken without its scale
        raise ModelError(
            f"weight {name} is stored as {dtype}, and the learner reads {', '.join(SAFETENSORS_NAMES.values())}: take the "
            "unquantised model"
        )
    local = parameter.to_local().detach()
    if local.numel():
        local.copy_(stored[rows_of(parameter)])


def _check_supported(config: PreTrainedConfig, model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{config.model_type}: the learner needs an output embedding without bias")
    changed = [name for name in _OTHER_HEADS if getattr(config, name, None) not in (None, 1, 1.0)]
    if changed:
        raise ModelError(
            f"{config.model_type}: {', '.join(changed)} changes the logits; the learner does not compute that"
        )


def _shard(policy: Policy, learner: LearnerConfig, mesh: DeviceMesh) -> None:
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, learner.compute_dtype), reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if learner.cpu_offload else OffloadPolicy()
    for layer in policy.model.base_model.layers:
        if learner.activation_checkpointing:
            layer.forward = _checkpointed(layer.forward)
        if learner.compile:
            layer.compile()
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=learner.reshard_after_forward,
            mp_policy=precision,
            offload_policy=offload,
        )
    root = fully_shard(policy, mesh=mesh, reshard_after_forward=False, mp_policy=precision, offload_policy=offload)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the global token count, so gradients are plain sums over ranks, replicas included. One
            # rank has nothing to sum: a factor would only cost it one more copy of a gradient.
            if mesh.size() > 1:
                module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _checkpointed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``forward``, computed again for the backward pass. torch's compiler skips layers whose forward is a ``partial``."""

    def recomputed(*args: object, **settings: object) -> Tensor:
        # No dropout, hence no random state to carry into the recomputation.
        result: Tensor = checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **settings)
        return result

    return recomputed


def _materialise(policy: Policy, home: torch.device, device: torch.device) -> None:
    """Give the shards memory at ``home``. Buffers (rotary frequencies) were computed at construction and go to ``device``."""
    buffers = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    policy.to_empty(device=home)
    for name, computed in buffers.items():
        owner, _, leaf = name.rpartition(".")
        policy.get_submodule(owner).register_buffer(leaf, computed.to(device), persistent=False)
