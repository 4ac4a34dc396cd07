"""A model's shape, from its ``config.json`` alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rlep.core.errors import ModelError
from rlep.core.model_config import read_config

READ_BYTES = 2**24
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Of a decoder layer."""

TIED_UNLESS_STATED = frozenset({"gemma", "gemma3_text", "smollm3", "starcoder2"})
"""Families whose output head is the embedding where ``config.json`` says nothing of it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama and Qwen families: gated MLP, grouped-query attention."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    """Output head and embedding are one matrix."""
    attention_bias: bool
    """The q, k and v projections have a bias."""
    head_norms: bool = False
    """Queries and keys are normalised per head (Qwen3)."""
    teacher: ModelShape | None = None
    """Shape of ``loss.teacher``."""

    @property
    def parameters(self) -> int:
        """Weights in all."""
        return self.embedding_parameters + self.layers * self.layer_parameters

    @property
    def embedding_parameters(self) -> int:
        """Weights outside the layers: embedding, output head and the last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys) * self.attention_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.head_norms
        return attention + 3 * self.hidden * self.intermediate + norms

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Weights of the LoRA adapters of this rank on the target layers; ``all-linear`` is every one."""
        queries, keys, wide = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.intermediate
        others = (queries, keys, keys, queries, wide, wide, wide)
        ends = {name: self.hidden + other for name, other in zip(LINEAR_LAYERS, others, strict=True)}
        fused = {"qkv_proj": self.hidden + queries + 2 * keys, "gate_up_proj": self.hidden + 2 * wide}
        if "all-linear" in targets:
            return self.layers * rank * sum(ends.values())
        return self.layers * rank * sum((ends | fused).get(name, self.hidden + wide) for name in targets)

    def kv_bytes(self, width: int) -> int:
        """KV cache of one token in bytes, ``width`` bytes a value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width


def read_shape(model: Path) -> ModelShape:
    """The shape that ``config.json`` states. Raises ``ModelError`` naming what it lacks."""
    stated = read_config(model)
    stated = stated.get("text_config") or stated
    try:
        kind, heads = str(stated.get("model_type", "")), int(stated["num_attention_heads"])
        return ModelShape(
            layers=int(stated["num_hidden_layers"]),
            hidden=int(stated["hidden_size"]),
            intermediate=int(stated["intermediate_size"]),
            vocabulary=int(stated["vocab_size"]),
            heads=heads,
            kv_heads=int(stated.get("num_key_value_heads") or heads),
            head_dim=int(stated.get("head_dim") or int(stated["hidden_size"]) // heads),
            tied=bool(stated.get("tie_word_embeddings", kind in TIED_UNLESS_STATED)),
            attention_bias=bool(stated.get("attention_bias", kind == "qwen2")),
            head_norms=kind == "qwen3",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{model / 'config.json'}: the model's shape cannot be read: {error!r}") from None


def undivided(shape: ModelShape, workers: int) -> str:
    """Describe what of a model cannot be divided among tensor-parallel ``workers``; an empty string where all can.

    Fewer key heads than workers are repeated.
    """
    if shape.heads % workers:
        return f"{shape.heads} attention heads"
    if shape.kv_heads % workers and workers % shape.kv_heads:
        return f"{shape.kv_heads} key heads"
    return f"an intermediate size of {shape.intermediate}" if shape.intermediate % workers else ""


def linear_layers(model: Path) -> tuple[str, ...]:
    """Names of the linear layers within the decoder's layers, as the weights' files state them; sorted.

    Raises:
        ModelError: a file cannot be read.
    """
    found = set()
    for path in sorted(model.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    owner, _, leaf = name.rpartition(".")
                    if leaf == "weight" and ".layers." in owner and len(file.get_slice(name).get_shape()) == 2:
                        found.add(owner.rpartition(".")[2])
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
    return tuple(sorted(found))


def same_weights(model: Path, name: str, other: str) -> bool:
    """Tell whether two weights of a model directory are the same bytes; also where one of them is not in its files.

    Raises:
        ModelError: a file cannot be read.
    """
    places = [place for one in (name, other) if (place := _place_of(model, one)) is not None]
    if len(places) < 2:
        return True
    (first, start, size), (second, offset, length) = places
    if size != length:
        return False
    try:
        with first.open("rb") as one, second.open("rb") as two:
            one.seek(start)
            two.seek(offset)
            return all(
                one.read(min(READ_BYTES, size - at)) == two.read(min(READ_BYTES, size - at))
                for at in range(0, size, READ_BYTES)
            )
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error}") from error


def has_weight(model: Path, name: str) -> bool:
    """True if a model directory's files hold a weight of this name. Raises ``ModelError`` if one cannot be read."""
    return _place_of(model, name) is not None


def _place_of(model: Path, name: str) -> tuple[Path, int, int] | None:
    """File, first byte and number of bytes of a weight; None where no file has it."""
    for path in sorted(model.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
                held = json.loads(file.read(min(header, path.stat().st_size)))
                if name in held:
                    begin, end = held[name]["data_offsets"]
                    return path, 8 + header + begin, end - begin
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(f"{path} cannot be read: {error!r}") from error
    return None


def width_of(dtype: str) -> int:
    """Bytes of a value of a compute type."""
    return 4 if dtype == "float32" else 2
