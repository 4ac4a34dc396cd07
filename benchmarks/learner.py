"""Speed and memory of the learner's packed update against a padded loop and the machine's own matrix products.

``python benchmarks/learner.py [--json]``, on one core. The batch is ragged: 128 sequences of 20-250 tokens, Qwen2 with
about a million parameters. Every arm runs in a process of its own, so that peaks of memory do not mix; times are CPU
seconds, the best of three. The padded loop is what a plain training script does: right-padded micro-batches of 16
sequences through transformers' SDPA, log-softmax of all logits. ``loss_difference`` is relative.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlep.engines.learner import LearnerRank
from rlep.engines.options import LearnerOptions, OptimizerOptions
from rlep.engines.report import model_flops
from rlep.types import SequenceBatch

SEQUENCES, SHORTEST, LONGEST, PROMPT = 128, 20, 250, 10
PADDED_ROWS = 16
REPEATS = 3


@dataclass(frozen=True)
class Measured:
    """One arm: tokens per CPU second, peak resident bytes above the loaded model, and the loss."""

    tokens_per_cpu_second: float
    peak_bytes: int
    loss: float


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


def ragged_batch(vocabulary: int) -> SequenceBatch:
    """The same batch for every arm; old log-probs near those of a random model."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, size=SEQUENCES)
    responses = int((lengths - PROMPT).sum())
    return SequenceBatch(
        tokens=rng.integers(0, vocabulary, size=lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=np.full(SEQUENCES, PROMPT, dtype=np.int32),
        advantages=rng.normal(size=SEQUENCES).astype(np.float32),
        trained=np.ones(SEQUENCES, dtype=np.bool_),
        groups=(np.arange(SEQUENCES) // 8).astype(np.int32),
        replayed=np.zeros(SEQUENCES, dtype=np.bool_),
        old_logprobs=rng.normal(-np.log(vocabulary), 0.1, size=responses).astype(np.float32),
    )


def ours(directory: Path, vocabulary: int) -> Measured:
    """The learner's own update; its learning rate of nothing keeps the loss the same."""
    options = LearnerOptions(optimizer=OptimizerOptions(lr=0.0), micro_batch_tokens=4096, threads=1)
    meeting = f"file://{directory}/meeting-{vocabulary}"
    learner = LearnerRank(directory, options, rank=0, world_size=1, init_method=meeting)
    batch = ragged_batch(vocabulary)
    measured = measure(lambda: learner.update(batch, rollout=0).loss, len(batch.tokens))
    learner.close()
    return measured


def padded(directory: Path, vocabulary: int) -> Measured:
    """A plain loop over right-padded micro-batches of the same sequences in the same order."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1)
    batch = ragged_batch(vocabulary)
    return measure(lambda: padded_update(model, adamw, batch), len(batch.tokens))


def padded_update(model: torch.nn.Module, adamw: torch.optim.AdamW, batch: SequenceBatch) -> float:
    """Eq. 4 with dual clip, token mean, one optimizer step; returns the loss."""
    assert batch.old_logprobs is not None
    parts = [torch.from_numpy(part) for part in np.split(batch.tokens.astype(np.int64), batch.offsets[1:-1])]
    olds = [torch.from_numpy(part) for part in np.split(batch.old_logprobs, np.cumsum(batch.response_lengths)[:-1])]
    total = 0.0
    for start in range(0, SEQUENCES, PADDED_ROWS):
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


def measure(update: Callable[[], float], tokens: int) -> Measured:
    """The best of ``REPEATS`` updates after one to warm up."""
    before = peak()
    loss, seconds = update(), []
    for _ in range(REPEATS):
        started = time.process_time()
        update()
        seconds.append(time.process_time() - started)
    return Measured(tokens / min(seconds), peak() - before, loss)


def peak() -> int:
    """Peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_ceiling() -> float:
    """Operations per CPU second of one core in a large fp32 matrix product."""
    torch.set_num_threads(1)
    matrix = torch.randn(1536, 1536)
    seconds = []
    for _ in range(5):
        started = time.process_time()
        matrix @ matrix
        seconds.append(time.process_time() - started)
    return float(2 * 1536**3 / min(seconds))


def compare(vocabulary: int) -> dict[str, object]:
    """All figures for one vocabulary."""
    config = config_of(vocabulary)
    torch.manual_seed(0)
    with (
        tempfile.TemporaryDirectory() as name,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        model = Qwen2ForCausalLM(config)
        model.save_pretrained(name)
        arms = {arm.__name__: pool.apply(arm, (Path(name), vocabulary)) for arm in (ours, padded)}
        ceiling = pool.apply(matmul_ceiling)
    batch = ragged_batch(vocabulary)
    flops = model_flops(config, sum(weight.numel() for weight in model.parameters()), batch)
    speed = arms["ours"].tokens_per_cpu_second
    return {
        "vocabulary": vocabulary,
        "tokens": len(batch.tokens),
        **{name: asdict(measured) for name, measured in arms.items()},
        "matmul_ceiling_flops": ceiling,
        "ours_over_padded": speed / arms["padded"].tokens_per_cpu_second,
        "fraction_of_matmul_ceiling": flops / len(batch.tokens) * speed / ceiling,
        "loss_difference": abs(arms["ours"].loss / arms["padded"].loss - 1.0),
    }


def main() -> None:
    """Print the figures of each vocabulary; with ``--json`` one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per vocabulary")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[98, 16_384])
    chosen = parser.parse_args()
    for vocabulary in chosen.vocabulary:
        figures = compare(vocabulary)
        print(json.dumps(figures) if chosen.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
