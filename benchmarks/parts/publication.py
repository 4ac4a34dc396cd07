"""Publishing 500 M float32 weights of one rank, against copying as many bytes in memory: one thread each.

* ``publish_over_memcpy``: the learner's part, from its shards to a file in shared memory that generators may load;
* ``load_over_memcpy``: the generator's part, from that file to a real vLLM that would serve them: pause, check, load, vLLM's
  own packing of every matrix for oneDNN, resume;
* ``publish_and_load_over_memcpy``: both, one after the other.

Medians of five rounds that have all three in turn, after two rounds (``first_publish_over_memcpy`` is the first of them) in
which both files are made. The copy goes into memory that is there already. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlep.config.schema import Config
from rlep.engines.learner.full_weights import FullWeights
from rlep.engines.learner.weight_sender import weight_update, write_weights
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.shared_memory import SharedMemoryWriter

ROUNDS, FIRST = 5, 2
CONFIG = Config().with_values(
    data={"max_prompt_tokens": 32},
    rollout={"max_tokens": 32},
    generator={"max_sequences": 8, "max_batched_tokens": 64, "kv_cache_gib": 0.25},
)
START_S = 900.0


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="rlep-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="rlep-bench-") as home,
    ):
        weights = write_model(Path(home))
        prepare_environment(CONFIG, Path(home))
        dist.init_process_group("gloo", init_method=f"file://{home}/meeting", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        shards = [(name, DTensor.from_local(weight, mesh, [Shard(0)])) for name, weight in weights]
        rounds = asyncio.run(measured(Path(home), shards, SharedMemoryWriter(Path(memory))))
        dist.destroy_process_group()
    settled = rounds[FIRST:]
    copy_s, publish_s, load_s = (statistics.median(column) for column in zip(*settled, strict=True))
    nbytes = sum(weight.nbytes for _, weight in weights)
    figures = {
        "publish_over_memcpy": round(copy_s / publish_s, 3),
        "load_over_memcpy": round(copy_s / load_s, 3),
        "publish_and_load_over_memcpy": round(copy_s / (publish_s + load_s), 3),
        "first_publish_over_memcpy": round(copy_s / rounds[0][1], 3),
        "memcpy_gib_per_s": round(nbytes / copy_s / 2**30, 2),
        "weights": nbytes // 4,
    }
    print(json.dumps(figures))


def write_model(home: Path) -> list[tuple[str, Tensor]]:
    """A model directory of 501 M weights, and the weights."""
    config = Qwen2Config(
        vocab_size=16_384,
        hidden_size=1024,
        intermediate_size=4864,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    weights = [(name, torch.full(tuple(weight.shape), 0.01)) for name, weight in model.named_parameters()]
    save_file(dict(weights), home / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(home)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>").save_pretrained(home)
    return weights


async def measured(
    home: Path, shards: Sequence[tuple[str, DTensor]], writer: SharedMemoryWriter
) -> list[tuple[float, float, float]]:
    """Seconds of a copy, a weight update and its load, by rounds."""
    copies = [torch.zeros_like(shard.to_local()) for _, shard in shards]
    weights = FullWeights(shards)
    sampler, rounds = Sampler(home, CONFIG), []
    await sampler.start(START_S)
    try:
        for version in range(FIRST + ROUNDS):
            begun = time.perf_counter()
            for copy, (_, shard) in zip(copies, shards, strict=True):
                copy.copy_(shard.to_local())
            copied = time.perf_counter()
            shared = write_weights(weights, writer, version, "float32")
            assert shared is not None
            published = time.perf_counter()
            await sampler.load_weights(weight_update(weights, shared, version, (), "float32", checksums=()))
            rounds.append((copied - begun, published - copied, time.perf_counter() - published))
    finally:
        await sampler.close()
    return rounds


if __name__ == "__main__":
    main()
