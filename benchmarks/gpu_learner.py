"""Speed of the learner's update on one GPU: random weights in Qwen2.5-Math-7B's shape, sequences of the paper's lengths.

``python benchmarks/gpu_learner.py [--json]`` on a machine with a GPU of at least 140 GB (16 bytes a parameter and some
activations) and 16 GB of disk for the weights. ``--tiny`` runs the same on a CPU with a model of some thousand weights.
Each mode (with and without activation checkpointing) runs in a process of its own and prints tokens per second, model
FLOP utilisation (of the device's bfloat16 peak; null where that is not known) and peak memory. A mode that the GPU has no
room for says so: without checkpointing a layer keeps about 225 KB a token of this shape, 6.3 MB in all. ``--compile``
measures ``learner.compile``; it needs a C++ compiler on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config

from rlep.config.schema import Config
from rlep.core.types import SequenceBatch
from rlep.engines.learner.rank import LearnerRank


@dataclass(frozen=True)
class Size:
    """What is measured."""

    config: dict[str, int]
    prompt: int
    longest: int
    """Longest response in tokens."""
    sequences: int
    """Sequences of one update."""
    device: str
    micro_batch_tokens: tuple[int, int]
    """With and without activation checkpointing."""


PAPER = Size(
    {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    prompt=150,
    longest=3072,
    sequences=128,
    device="cuda",
    micro_batch_tokens=(16_384, 4096),
)
TINY = Size(
    {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    },
    prompt=5,
    longest=96,
    sequences=16,
    device="cpu",
    micro_batch_tokens=(512, 128),
)


def write_model(size: Size, directory: Path) -> None:
    """Random bfloat16 weights (standard deviation 0.02), one file per layer or other part: never the whole model in memory."""
    config = Qwen2Config(**size.config, tie_word_embeddings=False, dtype="bfloat16")
    config.save_pretrained(directory)
    with torch.device("meta"):
        names = {
            name: tuple(tensor.shape) for name, tensor in AutoModelForCausalLM.from_config(config).named_parameters()
        }
    torch.manual_seed(0)
    for number, (name, shape) in enumerate(names.items()):
        values = torch.ones(shape) if "norm" in name else torch.randn(shape, device=size.device) * 0.02
        save_file({name: values.bfloat16().cpu()}, directory / f"part-{number:04d}.safetensors", {"format": "pt"})


def update_of(size: Size) -> SequenceBatch:
    """Groups of 16; response lengths spread as answers are: log-normal around a quarter of the limit, some cut at it."""
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(np.log(size.longest / 4), 0.7, size=size.sequences)
    responses = np.clip(drawn, 2, size.longest).astype(np.int64)
    total = int(responses.sum())
    return SequenceBatch(
        tokens=rng.integers(0, size.config["vocab_size"], size=total + size.prompt * size.sequences).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(responses + size.prompt)]).astype(np.int64),
        prompt_lengths=np.full(size.sequences, size.prompt, dtype=np.int32),
        advantages=rng.normal(size=size.sequences).astype(np.float32),
        trained=np.ones(size.sequences, dtype=np.bool_),
        groups=(np.arange(size.sequences) // 16).astype(np.int32),
        replayed=np.zeros(size.sequences, dtype=np.bool_),
        old_logprobs=np.full(total, -np.log(size.config["vocab_size"]), dtype=np.float32),
    )


def measured(size: Size, model: Path, checkpointing: bool, compiled: bool, repeats: int) -> dict[str, object]:
    """One mode: the median of ``repeats`` updates after one to warm up."""
    tokens = size.micro_batch_tokens[0 if checkpointing else 1]
    config = Config().with_values(
        learner={
            "gpus": 1.0 if size.device == "cuda" else 0.0,
            "activation_checkpointing": checkpointing,
            "compile": compiled,
            "reshard_after_forward": True,  # one GPU holds all master weights: a second, gathered copy would cost too much
            "micro_batch_tokens": tokens,
        }
    )
    mode: dict[str, object] = {
        "device": torch.cuda.get_device_name() if size.device == "cuda" else "cpu",
        "activation_checkpointing": checkpointing,
        "compile": compiled,
        "micro_batch_tokens": tokens,
    }
    meeting = f"file://{model}/meeting-{int(checkpointing)}"
    try:
        learner = LearnerRank(model, config, rank=0, world_size=1, meeting_point=meeting)
        batch = update_of(size)
        reports = [learner.update(batch, rollout=0) for _ in range(1 + repeats)]
    except torch.OutOfMemoryError as error:
        return mode | {"out_of_memory": str(error)}  # this process ends now
    costs = [report.cost for report in reports[1:]]
    seconds = statistics.median(cost.seconds for cost in costs)
    learner.close()
    return mode | {
        "tokens": costs[0].tokens,
        "tokens_per_second": costs[0].tokens / seconds,
        "flops_per_second": costs[0].model_flops / seconds,
        "flop_utilization": costs[0].model_flops / seconds / costs[0].peak_flops if costs[0].peak_flops else None,
        "peak_memory_bytes": costs[-1].peak_memory_bytes,
        "loss": reports[0].loss,
    }


def main() -> None:
    """Measure both modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per mode")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU: shows that the script works")
    parser.add_argument("--compile", action="store_true", help="compile the layers; the first update takes minutes")
    parser.add_argument("--repeats", type=int, default=3, help="updates after the first")
    chosen = parser.parse_args()
    size = TINY if chosen.tiny else PAPER
    if size.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; --tiny runs a tiny model on the CPU")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    processes = multiprocessing.get_context("spawn")  # each gives all GPU memory back
    with tempfile.TemporaryDirectory() as name:
        with processes.Pool(1) as pool:
            pool.apply(write_model, (size, Path(name)))
        for checkpointing in (True, False):
            with processes.Pool(1) as pool:
                figures = pool.apply(measured, (size, Path(name), checkpointing, chosen.compile, chosen.repeats))
            print(json.dumps(figures) if chosen.json else json.dumps(figures, indent=2), flush=True)


if __name__ == "__main__":
    main()
