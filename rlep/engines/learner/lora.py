"""Low-rank adapters (LoRA, arXiv 2106.09685): a linear layer computes ``W x + alpha / rank * B A x``, and W stays frozen.

Names, initialisation and files are those of Hugging Face peft, which loads what is saved here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from rlep.config.roles import LearnerConfig
from rlep.core.errors import CheckpointError, ModelError
from rlep.core.seeds import seed_for
from rlep.engines.learner.device_state import current_device, rows_of

A, B = ".lora_A.weight", ".lora_B.weight"
_PEFT = "base_model.model."
ALL = "all-linear"


class LoraLinear(nn.Linear):
    """A linear layer with frozen weights and an adapter in float32."""

    def __init__(self, base: nn.Linear, learner: LearnerConfig) -> None:
        nn.Module.__init__(self)  # no weights of its own
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.lora_A = nn.Linear(base.in_features, learner.lora_rank, bias=False, device="meta", dtype=torch.float32)
        self.lora_B = nn.Linear(learner.lora_rank, base.out_features, bias=False, device="meta", dtype=torch.float32)
        self.scale, self.adapted = learner.lora_scale, True

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's name
        """``input [..., i]`` to ``[..., o]``."""
        output = linear(input, self.weight, self.bias)
        return output + self.scale * self.lora_B(self.lora_A(input)) if self.adapted else output


@dataclass(frozen=True, slots=True)
class Adapter:
    """One layer's shards."""

    a: DTensor
    """``[rank, i]``."""
    b: DTensor
    """``[o, rank]``, cut into the same rows as the weight it changes."""
    scale: float

    def merged(self, weight: DTensor) -> DTensor:
        """``weight + scale * b a`` in float32, sharded as ``weight``; collective."""
        mesh = weight.device_mesh
        device = current_device(mesh.device_type)  # shards may rest in host memory
        with torch.no_grad():
            a = self.a.detach().to(device)
            whole = a.full_tensor() if mesh.size() > 1 else a.to_local()
            local = weight.to_local().to(device, torch.float32)
            local = torch.addmm(local, self.b.to_local().to(device), whole, alpha=self.scale)
            return DTensor.from_local(
                local, mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
            )


def freeze(model: PreTrainedModel, learner: LearnerConfig) -> None:
    """Hold a model's weights, which are on meta, in the compute type and without gradients."""
    dtype = getattr(torch, learner.compute_dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(False)


def add_adapters(model: PreTrainedModel, learner: LearnerConfig) -> None:
    """Freeze a model and give its target layers adapters; weights are on meta.

    Raises:
        ModelError: a target that no layer has.
    """
    freeze(model, learner)
    head = model.get_output_embeddings()
    layers = {name: part for name, part in model.named_modules() if type(part) is nn.Linear and part is not head}
    present = {name.rpartition(".")[2] for name in layers}
    unknown = set(learner.lora_targets) - present - {ALL}
    if unknown:
        raise ModelError(
            f"learner.lora_targets: no linear layer is called {', '.join(sorted(unknown))}; "
            f"there are {', '.join(sorted(present))}"
        )
    for name, layer in layers.items():
        owner, _, leaf = name.rpartition(".")
        if ALL in learner.lora_targets or leaf in learner.lora_targets:
            model.get_submodule(owner).register_module(leaf, LoraLinear(layer, learner))


def initialise(shards: Sequence[tuple[str, DTensor]], seed: int) -> None:
    """A uniform within ``1 / sqrt(i)``, as ``nn.Linear`` and peft draw it, from a seed per layer; B is zero."""
    for name, parameter in shards:
        local = parameter.to_local().detach()
        if name.endswith(B):
            local.zero_()
        elif name.endswith(A):
            generator = torch.Generator().manual_seed(seed_for(seed, "lora", name))
            whole = torch.empty(parameter.shape).uniform_(-1.0, 1.0, generator=generator)
            whole /= parameter.shape[1] ** 0.5
            local.copy_(whole[rows_of(parameter)])


def adapters_of(shards: Sequence[tuple[str, DTensor]], scale: float) -> dict[str, Adapter]:
    """The adapters by the name of the weight that each changes."""
    found = dict(shards)
    return {
        name.removesuffix(A) + ".weight": Adapter(a, found[name.removesuffix(A) + B], scale)
        for name, a in shards
        if name.endswith(A)
    }


@contextmanager
def base_model(model: nn.Module) -> Iterator[None]:
    """Within the block the model computes without its adapters."""
    layers = [layer for layer in model.modules() if isinstance(layer, LoraLinear)]
    for layer in layers:
        layer.adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.adapted = True


def write_adapter(weights: Mapping[str, Tensor], learner: LearnerConfig, base: Path, target: Path) -> None:
    """Write full A and B ``weights`` as a directory that peft loads onto the model in ``base``.

    Raises:
        CheckpointError: it cannot be written.
    """
    names = {name.removesuffix(A).rpartition(".")[2] for name in weights if name.endswith(A)}
    stated = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": learner.lora_rank,
        "lora_alpha": learner.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(names),
        "inference_mode": True,
    }
    held = {_PEFT + name: weight for name, weight in weights.items()}
    try:
        target.mkdir(parents=True, exist_ok=True)
        save_file(held, target / "adapter_model.safetensors", metadata={"format": "pt"})
        (target / "adapter_config.json").write_text(json.dumps(stated, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the adapter to {target}: {error}") from error
