"""Speed of the learner on one GPU: updates, scoring and the output head, with each option that may make them faster.

``python benchmarks/gpu_learner.py [--json]`` measures the shape of Qwen2.5-Math-1.5B (32 GB of GPU memory, 3 GB of disk) in
two and a half minutes on an H200. It needs torch, transformers and pydantic, neither vLLM nor Ray. ``--shape 7B`` needs 140 GB of
GPU memory, or fewer layers of the same width: ``--layers 6`` takes 45 GB, and its FLOP utilisation is about that of the whole.
``--shape tiny`` runs everything on a CPU with a model of some thousand weights.

Weights are random, response lengths spread as answers are. Every mode has a process of its own and prints one JSON object:

* ``checkpointing``: ``learner.activation_checkpointing``, as for 7B on 80 GB: the one that the others are compared with;
* ``plain``: without it;
* ``compile``: with ``learner.compile``; ``first_update_seconds`` has the compiler's time;
* ``fa3``: with FlashAttention 3 by torch's ``activate_flash_attention_impl``; not measured where it is not installed;
* ``head``: the output head alone, forward and backward of a full row: as it is, with each product of its weight's
  gradient in memory of its own (as before), and in chunks of 1 GiB.

``loss`` and ``grad_norm`` are of the first update: every mode has to agree with the first one to about 1 % in bfloat16.
A mode that the GPU has no room for, or that is not done in ``--deadline`` seconds, says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl
from transformers import AutoModelForCausalLM, Qwen2Config

from rlep.algorithms.packing import plain_batch
from rlep.config.roles import LearnerConfig
from rlep.config.schema import Config
from rlep.core.output_head import CHUNK_BYTES
from rlep.core.types import SequenceBatch
from rlep.engines.learner import head
from rlep.engines.learner.allocator import allocator_settings
from rlep.engines.learner.rank import LearnerRank

if TYPE_CHECKING:
    from benchmarks.parts.shape_run import SHAPES, config_of
else:
    from parts.shape_run import SHAPES, config_of

MODES = ("checkpointing", "plain", "compile", "fa3", "head")


@dataclass(frozen=True)
class Size:
    """Shape of what is measured."""

    config: Qwen2Config
    micro_batch_tokens: tuple[int, int]
    """With and without activation checkpointing."""
    device: str = "cuda"
    prompt: int = 150
    longest: int = 3072
    """Longest response in tokens."""
    sequences: int = 64
    """Sequences of one update."""

    @property
    def head(self) -> tuple[int, int, int]:
        """Tokens, width and vocabulary of the output head that is measured alone."""
        return self.micro_batch_tokens[0], self.config.hidden_size, self.config.vocab_size


TINY = Qwen2Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=False,
)
SIZES = {name: Size(config_of(name), (16_384, 8192 if name == "1.5B" else 4096)) for name in SHAPES} | {
    "tiny": Size(TINY, (512, 128), device="cpu", prompt=5, longest=96, sequences=16)
}


def write_model(size: Size, directory: Path) -> None:
    """Random bfloat16 weights (standard deviation 0.02), one file per layer or other part: never the whole model in memory."""
    size.config.save_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(size.config)
    names = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
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
    tokens = rng.integers(0, size.config.vocab_size, size=total + size.prompt * size.sequences)
    return replace(
        plain_batch(tokens, responses + size.prompt, np.full(size.sequences, size.prompt)),
        advantages=rng.normal(size=size.sequences).astype(np.float32),
        groups=np.arange(size.sequences, dtype=np.int32) // 16,
        old_logprobs=np.full(total, -np.log(size.config.vocab_size), dtype=np.float32),
    )


def measure(mode: str, size: Size, model: Path, repeats: int) -> dict[str, object]:
    """Figures of one mode, with what it is."""
    name = torch.cuda.get_device_name() if size.device == "cuda" else "cpu"
    described: dict[str, object] = {"mode": mode, "device": name, "torch": torch.__version__}
    try:
        if mode == "fa3":
            activate_flash_attention_impl("FA3")
        return described | (
            head_figures(size, repeats) if mode == "head" else learner_figures(mode, size, model, repeats)
        )
    except ImportError as error:
        return described | {"not_measured": f"FlashAttention 3 is not installed: {error}"}
    except torch.OutOfMemoryError as error:
        return described | {"out_of_memory": str(error)}  # this process ends now


def learner_figures(mode: str, size: Size, model: Path, repeats: int) -> dict[str, object]:
    """The median of ``repeats`` updates after one to warm up, and of as many passes that score the same sequences."""
    checkpointing = mode != "plain"
    tokens = size.micro_batch_tokens[0 if checkpointing else 1]
    config = Config().with_values(
        learner={
            "gpus": 1.0 if size.device == "cuda" else 0.0,
            "activation_checkpointing": checkpointing,
            "compile": mode == "compile",
            "reshard_after_forward": True,  # one GPU holds all master weights: a second, gathered copy would cost too much
            "micro_batch_tokens": tokens,
        }
    )
    learner = LearnerRank(model, config, rank=0, world_size=1, meeting_point=f"file://{model}/meeting-{mode}")
    batch = update_of(size)
    reports = [learner.update(batch, rollout=0) for _ in range(1 + repeats)]
    scoring = [seconds_of(partial(learner.score, batch), size) for _ in range(1 + repeats)][1:]
    costs = [report.cost for report in reports[1:]]
    seconds = statistics.median(cost.seconds for cost in costs)
    learner.close()
    return {
        "micro_batch_tokens": tokens,
        "tokens": costs[0].tokens,
        "tokens_per_second": costs[0].tokens / seconds,
        "scored_tokens_per_second": costs[0].tokens / statistics.median(scoring),
        "flops_per_second": costs[0].model_flops / seconds,
        "flop_utilization": costs[0].model_flops / seconds / costs[0].peak_flops if costs[0].peak_flops else None,
        "first_update_seconds": reports[0].cost.seconds,
        "peak_memory_bytes": costs[-1].peak_memory_bytes,
        "loss": reports[0].loss,
        "grad_norm": reports[0].grad_norm,
    }


def head_figures(size: Size, repeats: int) -> dict[str, object]:
    """Seconds and peak memory of the output head in each way, and how far apart their gradients are (of the largest entry)."""
    rows, width, vocabulary = size.head
    dtype = torch.bfloat16 if size.device == "cuda" else torch.float32
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device=size.device, dtype=dtype, requires_grad=True)
    weight = (0.02 * torch.randn(vocabulary, width, device=size.device)).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (rows,), device=size.device)
    in_place, chunk = head._add_product, CHUNK_BYTES[size.device]

    def one_pass() -> None:
        hidden.grad = weight.grad = None
        head.token_logprobs(hidden, weight, targets, entropy=True)[0].sum().backward()

    ways = {"as_it_is": (in_place, chunk), "products_apart": (add_apart, chunk), "chunks_of_1_gib": (in_place, 2**30)}
    figures: dict[str, object] = {"rows": rows, "width": width, "vocabulary": vocabulary}
    wanted: Tensor | None = None
    for way, (add, chunk_bytes) in ways.items():
        head._add_product, CHUNK_BYTES[size.device] = add, chunk_bytes
        one_pass()
        reset_peak(size)
        seconds = statistics.median(seconds_of(one_pass, size) for _ in range(repeats))
        assert weight.grad is not None
        wanted = weight.grad if wanted is None else wanted
        difference = float((weight.grad - wanted).abs().max() / wanted.abs().max())
        peak = torch.cuda.max_memory_allocated() if size.device == "cuda" else 0
        figures[way] = {"seconds": seconds, "peak_memory_bytes": peak, "gradient_difference": difference}
    return figures


def add_apart(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right`` with the product in memory of its own."""
    total += torch.mm(left, right, out_dtype=total.dtype) if left.dtype != total.dtype else left @ right


def seconds_of(work: Callable[[], object], size: Size) -> float:
    """Wall clock of ``work``, to the end of what it began on the device."""
    began = time.perf_counter()
    work()
    if size.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def reset_peak(size: Size) -> None:
    """Forget the peak of the GPU's memory."""
    if size.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def apart(work: Callable[..., dict[str, object] | None], *given: object, deadline_s: float) -> dict[str, object] | None:
    """``work`` in a process of its own, which gives all GPU memory back; what it returns, or that it was late."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            return pool.apply_async(work, given).get(deadline_s)
        except multiprocessing.TimeoutError:
            return {"not_measured": f"not done after {deadline_s:.0f} s"}


def main() -> None:
    """Measure the modes that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line per mode")
    parser.add_argument("--shape", choices=SIZES, default="1.5B")
    parser.add_argument("--layers", type=int, help="so many layers of the shape instead of all")
    parser.add_argument("--modes", default=",".join(MODES), help="some of: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="updates after the first")
    parser.add_argument("--deadline", type=float, default=180.0, help="seconds for one mode")
    chosen = parser.parse_args()
    size, modes = SIZES[chosen.shape], chosen.modes.split(",")
    if chosen.layers:
        size.config.num_hidden_layers = chosen.layers
    if unknown := set(modes) - set(MODES):
        parser.error(f"no modes {', '.join(sorted(unknown))}: there are {', '.join(MODES)}")
    if size.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; --shape tiny runs a tiny model on the CPU")
    os.environ.update(allocator_settings(LearnerConfig()))
    with tempfile.TemporaryDirectory() as name:
        if set(modes) != {"head"}:
            apart(write_model, size, Path(name), deadline_s=chosen.deadline)
        for mode in modes:
            figures = apart(measure, mode, size, Path(name), chosen.repeats, deadline_s=chosen.deadline)
            print(json.dumps({"mode": mode} | (figures or {}), indent=None if chosen.json else 2), flush=True)


if __name__ == "__main__":
    main()
