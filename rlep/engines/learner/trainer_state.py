"""A learner on disk: ``model/`` is a Hugging Face directory, ``trainer/`` holds what training needs to resume.

Trainer state is written by torch DCP in its safetensors format: every rank writes its own shards, any number of ranks
reads them, and no pickle is involved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter

from rlep.core.errors import CheckpointError
from rlep.engines.weights.weight_update import WeightDtype

MAX_FILE_BYTES = 5 * 10**9
"""Weights files of the Hugging Face directory stay below this size."""

_POSITION_FILE = "position.json"
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class Position:
    """Counters of a trainer, besides its tensors."""

    updates: int
    """Updates requested, skipped ones included; a schedule counted in updates uses it."""
    applied: int
    """Updates applied: AdamW's step count."""
    rollout: int | None = None
    """The last one that was updated on; None in files of before it was recorded."""


def write_model(weights: Mapping[str, Tensor], source: Path, target: Path, dtype: WeightDtype) -> None:
    """Write a Hugging Face directory: ``weights``, and everything else copied from ``source``.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        _copy_companions(source, target, dtype)
        save_torch_state_dict(dict(weights), target, max_shard_size=MAX_FILE_BYTES)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the model to {target}: {error}") from error


def write_trainer(tensors: Mapping[str, Tensor], position: Position, target: Path, group: dist.ProcessGroup) -> None:
    """Write trainer state; collective over ``group``.

    Args:
        tensors: DTensors in host memory, or tensors that one rank alone has under that name.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        writer = HuggingFaceStorageWriter(str(target), save_distributed=True)
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
        if dist.get_rank() == 0:
            (target / _POSITION_FILE).write_text(json.dumps(asdict(position)) + "\n")
    except (OSError, CheckpointException) as error:
        raise CheckpointError(f"cannot write trainer state to {target}: {_reason(error)}") from error


def read_trainer(
    tensors: Mapping[str, Tensor], optional: frozenset[str], source: Path
) -> tuple[Position, frozenset[str]]:
    """Fill ``tensors`` in place from trainer state of any world size; collective.

    Returns:
        The position, and which of the ``optional`` names were not there (and stay as they were).

    Raises:
        CheckpointError: files are missing, torn, or of another model.
    """
    try:
        position = Position(**json.loads((source / _POSITION_FILE).read_text()))
        reader = HuggingFaceStorageReader(str(source))
        stored = reader.read_metadata().state_dict_metadata
        absent = frozenset(name for name in optional if name not in stored)
        wanted = {name: tensor for name, tensor in tensors.items() if name not in absent}
        _check_same_model(wanted, stored)
        dcp.load(wanted, storage_reader=reader)
    except (OSError, ValueError, TypeError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"cannot read trainer state from {source}: {_reason(error)}") from error
    return position, absent


def _reason(error: BaseException) -> str:
    """In one line; DCP's own message is every rank's traceback."""
    if not isinstance(error, CheckpointException):
        return str(error)
    return "; ".join(f"rank {rank}: {type(e).__name__}: {e}" for rank, (e, _) in sorted(error.failures.items()))


def _check_same_model(wanted: Mapping[str, Tensor], stored: Mapping[str, object]) -> None:
    for name, tensor in wanted.items():
        size = getattr(stored.get(name), "size", None)
        if size is None or tuple(size) != tuple(tensor.shape):
            found = "missing" if size is None else f"of shape {tuple(size)}"
            raise ValueError(f"{name} is {found}, the learner's has shape {tuple(tensor.shape)}")


def _copy_companions(source: Path, target: Path, dtype: WeightDtype) -> None:
    """Configuration, tokenizer, chat template: every plain file that is not weights; only the dtype is rewritten."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copyfile(path, target / path.name)
    config = json.loads((source / "config.json").read_text())
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
