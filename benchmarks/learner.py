"""Speed and memory of the learner's update against TRL, a padded loop and the machine's own matrix products.

``python benchmarks/learner.py [--json] [--out FILE]``, on one core, in less than 8 minutes. The batch is ragged: 128 sequences
of 20-250 tokens, Qwen2 with about a million parameters beside its embedding. Every arm runs in a process of its own, so that
peaks of memory do not mix; times are CPU seconds, the best of several.

* ``plain``: the learner;
* ``padded``: a plain training script: right-padded micro-batches of 16 sequences through transformers' SDPA, log-softmax of all
  logits;
* ``trl``: its ``GRPOTrainer`` with micro-batches of as many, with generation replaced by the batch.

Printed are ``plain_over_trl`` (goal: 1.5 at V = 98), the same over the padded loop, and the learner's
share of a large fp32 product in the same process, which counts the products of the forward and the backward pass once, whatever
is computed again. ``loss_difference`` is relative, the largest to either peer. Peak memory is also compared at
V = 151,936, on the first 32 sequences: ``memory_over_padded``.

``--json`` prints one line per vocabulary and at last the worst of each figure over vocabularies.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlep.algorithms.packing import plain_batch, take
from rlep.config.schema import Config
from rlep.core.types import SequenceBatch
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.update_cost import model_flops

SEQUENCES, GROUP, SHORTEST, LONGEST, PROMPT = 128, 8, 20, 250, 10
PADDED_ROWS = 16
REPEATS = {98: 5, 16_384: 1}
"""Measured updates by vocabulary, after one to warm up. One of TRL's takes most of a minute at the larger one."""
MEMORY_VOCABULARY, MEMORY_SEQUENCES = 151_936, 32
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Measured:
    """One arm: tokens per CPU second, peak resident bytes above the loaded model, and the loss."""

    tokens_per_cpu_second: float
    peak_bytes: int
    loss: float
    ceiling: float = 0.0
    """Operations per CPU second of a large matrix product in the same process; 0 where it was not measured."""


def config_of(vocabulary: int) -> Qwen2Config:
    """Qwen2 with about a million parameters beside its embedding."""
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )


def ragged_batch(vocabulary: int, sequences: int = SEQUENCES) -> SequenceBatch:
    """The same batch for every arm: advantages of mean zero in each group, old log-probs near those of a random model."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, size=SEQUENCES)
    responses = int((lengths - PROMPT).sum())
    advantages = rng.normal(size=(SEQUENCES // GROUP, GROUP))
    batch = replace(
        plain_batch(rng.integers(0, vocabulary, size=lengths.sum()), lengths, np.full(SEQUENCES, PROMPT)),
        advantages=(advantages - advantages.mean(axis=1, keepdims=True)).reshape(-1).astype(np.float32),
        groups=np.arange(SEQUENCES, dtype=np.int32) // GROUP,
        old_logprobs=rng.normal(-np.log(vocabulary), 0.1, size=responses).astype(np.float32),
    )
    return take(batch, np.arange(sequences))


def plain(directory: Path, vocabulary: int, sequences: int, repeats: int) -> Measured:
    """The learner's update. A learning rate of nothing keeps the loss the same."""
    batch = ragged_batch(vocabulary, sequences)
    config = Config().with_values(update={"lr": 0.0}, learner={"micro_batch_tokens": 4096, "threads": 1})
    meeting = f"file://{directory}/meeting"
    learner = LearnerRank(directory, config, rank=0, world_size=1, meeting_point=meeting)
    measured = measure(lambda: learner.update(batch, rollout=0).loss, len(batch.tokens), repeats)
    learner.close()
    return measured


def padded(directory: Path, vocabulary: int, sequences: int, repeats: int) -> Measured:
    """A plain loop over right-padded micro-batches of the same sequences in the same order."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1)
    batch = ragged_batch(vocabulary, sequences)
    return measure(lambda: padded_update(model, adamw, batch), len(batch.tokens), repeats)


def trl(directory: Path, vocabulary: int, repeats: int) -> Measured:
    """TRL's update, in a process of its own."""
    batch, result = ragged_batch(vocabulary), directory / "trl.json"
    arrays = {field.name: getattr(batch, field.name) for field in fields(batch)}
    np.savez(directory / "batch.npz", **{name: array for name, array in arrays.items() if array is not None})
    command = [sys.executable, str(HERE / "peers" / "trl_update.py"), str(directory)]
    command += [str(directory / "batch.npz"), str(result), str(PADDED_ROWS), str(repeats)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise RuntimeError(f"TRL's update failed:\n{done.stderr[-3000:]}")
    told = json.loads(result.read_text())
    return Measured(len(batch.tokens) / told["cpu_seconds"], told["peak_bytes"], told["loss"])


def padded_update(model: torch.nn.Module, adamw: torch.optim.AdamW, batch: SequenceBatch) -> float:
    """Eq. 4 with dual clip, token mean, one optimizer step; returns the loss."""
    assert batch.old_logprobs is not None
    parts = [torch.from_numpy(part) for part in np.split(batch.tokens.astype(np.int64), batch.offsets[1:-1])]
    olds = [torch.from_numpy(part) for part in np.split(batch.old_logprobs, np.cumsum(batch.sampled_lengths)[:-1])]
    total = 0.0
    for start in range(0, len(batch), PADDED_ROWS):
        rows = slice(start, start + PADDED_ROWS)
        ids = torch.nn.utils.rnn.pad_sequence(parts[rows], batch_first=True)
        old = torch.nn.utils.rnn.pad_sequence(olds[rows], batch_first=True)  # [B, T]
        lengths = torch.tensor([len(part) for part in parts[rows]])
        attended = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        scores = model(input_ids=ids, attention_mask=attended).logits[:, PROMPT - 1 : -1].float().log_softmax(-1)
        logprobs = scores.gather(2, ids[:, PROMPT:, None]).squeeze(2)
        advantages = torch.from_numpy(batch.advantages[rows])[:, None]
        ratio = (logprobs - old).clamp(-20, 20).exp()
        terms = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28))
        terms = torch.where(advantages < 0, terms.minimum(-advantages * 10.0), terms)
        loss = (terms * attended[:, PROMPT:]).sum() / len(batch.old_logprobs)
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad()
    return total


def measure(update: Callable[[], float], tokens: int, repeats: int) -> Measured:
    """One update to warm up, then the best of ``repeats``, a matrix product before each."""
    before = peak()
    loss, seconds, ceilings = update(), [], []
    used = peak() - before
    for _ in range(repeats):
        ceilings.append(matmul_ceiling())
        started = time.process_time()
        update()
        seconds.append(time.process_time() - started)
    return Measured(tokens / min(seconds, default=float("inf")), used, loss, max(ceilings, default=0.0))


def peak() -> int:
    """Peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_ceiling() -> float:
    """Operations per CPU second of one core in a large fp32 matrix product."""
    torch.set_num_threads(1)
    matrix = torch.randn(1536, 1536)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        matrix @ matrix
        seconds.append(time.process_time() - started)
    return float(2 * 1536**3 / min(seconds))


def arms(vocabulary: int, sequences: int, repeats: int, *, with_trl: bool) -> tuple[dict[str, Measured], float]:
    """Every arm on the same model, and the operations of one update."""
    config = config_of(vocabulary)
    torch.manual_seed(0)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, context.Pool(1, maxtasksperchild=1) as pool:
        model = Qwen2ForCausalLM(config)
        model.save_pretrained(name)
        work = (Path(name), vocabulary, sequences, repeats)
        found = {arm.__name__: pool.apply(arm, work) for arm in (plain, padded)}
        if with_trl:
            found["trl"] = trl(Path(name), vocabulary, repeats)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    return found, matmul_flops(config, matrices, ragged_batch(vocabulary, sequences))


def matmul_flops(config: Qwen2Config, matrices: int, batch: SequenceBatch) -> float:
    """Operations of one update's matrix products; the output head sees only as many tokens as the responses have."""
    prompts = int(batch.prompt_lengths.sum())
    return model_flops(config, matrices, batch) - 6.0 * config.vocab_size * config.hidden_size * prompts


def compare(vocabulary: int) -> dict[str, object]:
    """All figures for one vocabulary."""
    found, flops = arms(vocabulary, SEQUENCES, REPEATS[vocabulary], with_trl=True)
    tokens = len(ragged_batch(vocabulary).tokens)
    speed = {name: measured.tokens_per_cpu_second for name, measured in found.items()}
    ratios = {f"plain_over_{peer}": speed["plain"] / speed[peer] for peer in ("trl", "padded")}
    return {
        "vocabulary": vocabulary,
        "tokens": tokens,
        **{name: asdict(measured) for name, measured in found.items()},
        **ratios,
        "fraction_of_matmul_ceiling": flops / tokens * speed["plain"] / found["plain"].ceiling,
        "loss_difference": loss_difference(found),
    }


def compare_memory() -> dict[str, object]:
    """Peak memory of one update with a large vocabulary."""
    found, _ = arms(MEMORY_VOCABULARY, MEMORY_SEQUENCES, 0, with_trl=False)
    return {
        "vocabulary": MEMORY_VOCABULARY,
        "sequences": MEMORY_SEQUENCES,
        "peak_bytes": {name: measured.peak_bytes for name, measured in found.items()},
        "memory_over_padded": found["plain"].peak_bytes / found["padded"].peak_bytes,
        "loss_difference": loss_difference(found),
    }


def loss_difference(found: dict[str, Measured]) -> float:
    """Relative, the largest to a peer."""
    return max(abs(found["plain"].loss / found[peer].loss - 1.0) for peer in found.keys() - {"plain"})


def worst(rows: list[dict[str, object]]) -> dict[str, float]:
    """Of each figure the worst."""
    speeds = ["plain_over_trl", "plain_over_padded"]
    kinds = dict.fromkeys([*speeds, "fraction_of_matmul_ceiling"], min)
    kinds |= {"loss_difference": max, "memory_over_padded": max}
    return {name: pick(float(str(row[name])) for row in rows if name in row) for name, pick in kinds.items()}


def main() -> None:
    """Print the figures of each vocabulary; with ``--json`` one line for each, and the worst at last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="one JSON line per vocabulary, then the worst of each figure"
    )
    parser.add_argument("--out", type=Path, help="also write everything to this file, with the machine's description")
    chosen = parser.parse_args()
    started, rows = time.monotonic(), list[dict[str, object]]()
    for compared in (partial(compare, 98), partial(compare, 16_384), compare_memory):
        rows.append(row := compared())
        print(json.dumps(row) if chosen.json else json.dumps(row, indent=2), flush=True)
    figures = worst(rows) | {"seconds": time.monotonic() - started}
    print(json.dumps(figures))
    if chosen.out:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
        written = {"machine": machine | {"torch": torch.__version__}, "rows": rows}
        chosen.out.write_text(json.dumps(written | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
