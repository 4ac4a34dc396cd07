"""vLLM's own models of several families, never run: what each tensor-parallel worker would hold of two versions of their weights.

python -m tests.engines.weights.held_process MODELS RESULT: below MODELS a directory for each family, with the weights of the
second version in ``second.safetensors``. RESULT is JSON: family -> workers -> version -> for each worker its held weights.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WORKERS = (1, 2, 4)
DTYPE = "bfloat16"


def main(models: Path, result: Path) -> None:
    """Build every model as every worker of every count, in this one process: only the group's rank and size are set."""
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with TemporaryDirectory() as meeting, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{meeting}/store", 0, "gloo")
        initialize_model_parallel(1, 1)
    found: dict[str, dict[int, list[list[Any]]]] = {}
    for directory in sorted(models.iterdir()):
        found[directory.name] = {}
        for count in WORKERS:
            held = [list(versions(directory, rank, count)) for rank in range(count)]
            found[directory.name][count] = [list(version) for version in zip(*held, strict=True)]
    result.write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def versions(directory: Path, rank: int, count: int) -> Iterator[dict[str, Any]]:
    """What worker ``rank`` of ``count`` holds after the first weights, and after the second."""
    import torch
    from safetensors.torch import load_file
    from vllm import EngineArgs
    from vllm.config import set_current_vllm_config
    from vllm.distributed import get_tp_group
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    from rlep.engines.sampler.vllm_worker import held_weights

    group, dtype = get_tp_group(), getattr(torch, DTYPE)
    group.rank_in_group, group.world_size = rank, count
    config = EngineArgs(
        model=str(directory),
        dtype=DTYPE,
        max_model_len=96,
        tensor_parallel_size=count,
        distributed_executor_backend="mp",
    ).create_engine_config()
    with set_default_torch_dtype(dtype), set_current_vllm_config(config):
        model = initialize_model(config)
        for file in ("model.safetensors", "second.safetensors"):
            model.load_weights(load_file(directory / file).items())
            yield held_weights(model, dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
