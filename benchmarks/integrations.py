"""Time that replay in TRL adds to a step, beyond the rows: ``rlep.integrations.trl`` and ``.replayer`` with a pool server.

    python benchmarks/integrations.py [--json] [--out FILE]      (six minutes of processor time)

* ``trl_step_ratio``: optimizer steps of one ``GRPOTrainer`` in turn with ``TrlReplay`` and with a rollout function that does
  the same without rlep: 8 prompts, of 16 rows each 12 are generated, and 4 are given, there from a dictionary in memory. So
  both generate 96 rows and train 128; what differs is draw, assembly and keep. Ratio of the medians over the pairs of steps.
  Of the quickstart's model (110k weights), whose steps are the shortest there are, and of a random one of 5 million.
* ``draw_ms``, ``keep_ms``: of ``Replayer`` for the same 8 prompts, in pools of 10,000 and 100,000 responses of 250 tokens,
  eight a prompt by other runs and eight of the run's own for the prompts asked; M = 4; keep stores 64 new successes.

The pool is a server process over an embedded Redis on loopback. Everything has one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlep import PoolClient
from rlep.config.schema import ModelConfig
from rlep.core.types import prompt_id_of
from rlep.engines.tokenizer import Tokenizer
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rule import replay_rule
from rlep.integrations.trl import TrlReplay
from rlep.quickstart.problems import Problem

MODEL = Path(__file__).resolve().parents[1] / "rlep" / "quickstart" / "model"
PROMPTS, GROUP, REPLAYS, TOKENS = 8, 16, 4, 48
HELD, STORED_TOKENS, VOCABULARY = 8, 250, 40_000
QUANTILES = (0.1, 0.5, 0.9)
SETTINGS: dict[str, Any] = {
    "run_name": "run",
    "per_device_train_batch_size": PROMPTS * GROUP,
    "num_generations": GROUP,
    "max_completion_length": TOKENS,
    "learning_rate": 1e-6,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}
WIDER = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 5}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "layer_types": ["full_attention"] * 5}


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a pool server in a process of its own."""
    words = [sys.executable, "-m", "rlep", "pool", "serve", "--embedded", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def problems() -> list[Problem]:
    """Questions of the steps: 64 different ones."""
    return [Problem(2 + at % 7, 3 + at // 7, (at % 5 + 1,), "Ann", "pens") for at in range(64)]


def right(completions: Sequence[Any], answer: Sequence[str], **_: object) -> list[float]:
    """1 where the response ends with the answer."""
    return [
        float(found[-1]["content"].endswith(f"{{{wanted}}}")) for found, wanted in zip(completions, answer, strict=True)
    ]


class Turns:
    """Rollouts of one trainer, in turn with replays of a pool and with as many responses of a dictionary."""

    def __init__(self, replay: TrlReplay, held: dict[str, list[list[int]]]) -> None:
        self._replay, self._held = replay, held
        self.with_pool = True

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """The rows of a step."""
        if self.with_pool:
            return self._replay.rollout(prompts, trainer)
        rows = [row for row in range(len(prompts)) if row % GROUP < GROUP - REPLAYS]
        prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
        fields = {name: [values[row] for row in rows] for name, values in fields.items()}
        generated, _ = trainer._generate_single_turn([prompt_ids[row] for row in rows], images, fields, 1)
        completions = [self._held[prompt[0]["content"]][row % REPLAYS] for row, prompt in enumerate(prompts)]
        for row, tokens in zip(rows, generated, strict=True):
            completions[row] = tokens
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}


def origin(tokenizer: Any, run: str) -> Origin:
    """A run of the quickstart's tokenizer and template."""
    mine = Tokenizer(tokenizer, ModelConfig())
    return Origin(run, mine.digest, mine.template_digest)


def fill(client: PoolClient, run: Origin, stored: Mapping[str, Sequence[Sequence[int]]]) -> Replayer:
    """Store responses as a run does, born in its step 0; returns its replayer."""
    replayer = Replayer(client, run, replay_rule(REPLAYS))
    names = [*stored]
    replayer.draw(0, names[:1])
    for start in range(0, len(names), 64):
        replayer.keep(0, rows_of({name: stored[name] for name in names[start : start + 64]}))
    return replayer


def rows_of(stored: Mapping[str, Sequence[Sequence[int]]]) -> list[Row]:
    """Right responses with log-probs."""
    return [
        Row(name, np.asarray(tokens, np.int32), 1.0, True, np.full(len(tokens), -0.25, np.float32))
        for name, responses in stored.items()
        for tokens in responses
    ]


def calls(size: int, repetitions: int, address: str) -> dict[str, Any]:
    """Draws and keeps of a pool of ``size`` responses, for prompts that every repetition takes anew."""
    draw = np.random.default_rng(0)

    def responses(names: Sequence[str], count: int) -> dict[str, list[list[int]]]:
        tokens = draw.integers(4, VOCABULARY, (len(names), count, STORED_TOKENS))
        return {name: tokens[at].tolist() for at, name in enumerate(names)}

    names = [prompt_id_of(str(number), "") for number in range(size // HELD)]
    seconds: dict[str, list[float]] = {"draw": [], "keep": []}
    with PoolClient(address, pool=str(size)) as client:
        for start in range(0, len(names), 512):
            fill(client, Origin(f"teacher-{start}", "digest"), responses(names[start : start + 512], HELD))
        asked = [names[start : start + PROMPTS] for start in range(0, (repetitions + 1) * PROMPTS, PROMPTS)]
        own = fill(client, Origin("run", "digest"), responses([*itertools.chain(*asked)], HELD))
        for step, prompts in enumerate(asked, 1):
            successes = rows_of(responses(prompts, HELD))
            began = time.perf_counter()
            drawn = own.draw(step, prompts)
            seconds["draw"].append(time.perf_counter() - began)
            assert {name: len(found) for name, found in drawn.items()} == dict.fromkeys(prompts, REPLAYS)
            began = time.perf_counter()
            own.keep(step, successes)
            seconds["keep"].append(time.perf_counter() - began)
    return {"responses": size, **{f"{name}_ms": spread(np.array(found[1:])) for name, found in seconds.items()}}


def model_of(name: str) -> Any:
    """The quickstart's model, or a random wider one with its tokenizer."""
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    if name == "110k":
        return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config.from_pretrained(MODEL, **WIDER, **HEADS))


def steps(name: str, pairs: int, address: str, output: Path) -> dict[str, Any]:
    """Seconds of a trainer's steps in turn; the first pair is not counted."""
    sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]  # TRL would import it, which takes half a minute
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL, padding_side="left")
    asked = problems()
    held = {
        problem.question: [
            tokenizer.encode(f"{'=' * number}\\boxed{{{problem.answer}}}<eos>", add_special_tokens=False)
            for number in range(HELD)
        ]
        for problem in asked
    }
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with PoolClient(address, pool=name) as client:
        replay = TrlReplay(client, count=REPLAYS)
        turns = Turns(replay, held)
        fill(client, origin(tokenizer, "teacher"), {prompt_id_of(name, ""): found for name, found in held.items()})

        class Clock(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
            began = 0.0

            def on_step_begin(self, _: Any, state: Any, *__: object, **___: object) -> None:
                """Choose the turn: pairs begin with the one and the other."""
                turns.with_pool = state.global_step % 4 in (0, 3)
                self.began = time.perf_counter()

            def on_step_end(self, _: Any, state: Any, *__: object, **___: object) -> None:
                """A step is done."""
                if state.global_step > 4:
                    seconds[turns.with_pool].append(time.perf_counter() - self.began)

        trainer = GRPOTrainer(
            model=model_of(name),
            processing_class=tokenizer,
            args=GRPOConfig(str(output), max_steps=2 * pairs + 4, **SETTINGS),
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": one.question}], "answer": str(one.answer)} for one in asked]
            ),
            rollout_func=turns.rollout,
            reward_funcs=[replay.reward(right)],
            callbacks=[Clock()],
        )
        trainer.train()
    with_pool, without = (np.array(seconds[turn]) for turn in (True, False))
    return {
        "model": name,
        "with_ms": spread(with_pool),
        "without_ms": spread(without),
        "added_ms": round(1e3 * float(np.median(with_pool - without)), 2),
        "trl_step_ratio": round(float(np.median(with_pool) / np.median(without)), 4),
    }


def spread(seconds: Any) -> list[float]:
    """Milliseconds: 10th percentile, median, 90th percentile."""
    return [round(1e3 * float(value), 2) for value in np.quantile(seconds, QUANTILES)]


def main() -> None:
    """Print the figures; with ``--json`` as one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of steps of each model")
    parser.add_argument("--models", default="110k,5m")
    parser.add_argument("--sizes", default="10000,100000", help="responses of the pools for draw and keep")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home, served(Path(home) / "pools") as address:
        pools = [calls(int(size), given.pairs, address) for size in given.sizes.split(",") if size]
        trained = [steps(name, given.pairs, address, Path(home) / name) for name in given.models.split(",") if name]
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start",
        "torch": torch.__version__,
        "trl": metadata.version("trl"),
        "pairs": given.pairs,
        "steps": trained,
        "pools": pools,
    }
    print(json.dumps(figures) if given.json else json.dumps(figures, indent=2))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
