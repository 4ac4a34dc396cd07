"""Peak memory of a learner rank in an update, measured on CPUs with gloo, against what ``rlep plan`` predicts.

``python benchmarks/memory.py [--json] [--out FILE]``: about ten minutes on two cores, and 9 GiB for the case of four ranks.
Every case has fresh processes. The figures are of the rank that needs most:

* ``peak_bytes``: largest resident memory (``VmHWM``) in an update of three full micro-batches for each rank;
* ``gradient_bytes``: what that is more than in an update of one: gradients held from one micro-batch to the next;
* ``asleep_bytes``: what it holds while it sleeps, all of it offloaded state.

They are less the process's resident memory after an update of a tiny model, when all code is loaded, before the measured one
is built. The C library's heap is set to give back every freed block of more than 16 KiB, so that resident memory is memory
in use, as a GPU's allocated bytes are. As the learner sets it, freed blocks are kept, and a process is larger by those.

The models are the quickstart's and one of SmolLM2-135M's shape (30 layers) with random weights. Printed at last are the
largest relative error of the plan over all cases, and the gradient bytes of a rank of four over those of one alone.

``python benchmarks/memory.py --shape 7B configs/paper/rlep.toml configs/machines/8x80gb.toml [--set KEY=VALUE]``: one rank at a
real shape, phase by phase, in some ten seconds: where there is a GPU on it, for ``learner.ranks = 1``, and else in shapes alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rlep.config.schema import Config
from rlep.config.settings import parse_config
from rlep.core.heap import resident, return_freed_memory
from rlep.engines.learner import device_state, head
from rlep.engines.learner.packed_row import largest_update
from rlep.engines.learner.rank import LearnerRank
from rlep.plan.learner import plan_learner
from rlep.plan.model_shape import read_shape

if TYPE_CHECKING:
    from benchmarks.parts.shape_run import SHAPES, measure_shape
else:
    from parts.shape_run import SHAPES, measure_shape

TOY = Path(__file__).resolve().parents[1] / "rlep" / "quickstart" / "model"
SMOL = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    model: str = "135M"
    ranks: int = 1
    tokens: int = 512
    longest: int = 256
    settings: dict[str, Any] = field(default_factory=dict)
    """Of ``[learner]``."""
    kl_coef: float = 0.0
    gradients: bool = False
    """Measure one micro-batch as well, which says what gradients take."""

    def config(self, model: Path) -> Config:
        """As a user writes it."""
        return parse_config(
            {
                "model": {"path": str(model)},
                "data": {"max_prompt_tokens": 8},
                "rollout": {"max_tokens": self.longest - 8},
                "reward": {"overlong_buffer": 0},
                "loss": {"kl_coef": self.kl_coef},
                "learner": {"ranks": self.ranks, "micro_batch_tokens": self.tokens, **self.settings},
            }
        )


FEW: dict[str, Any] = {"tokens": 256, "longest": 128}
UNSHARDED = {"unsharded_gradients": True}
CASES = (
    Case("toy", "toy", tokens=16_384, longest=128),
    Case("toy, bfloat16", "toy", tokens=16_384, longest=128, settings={"dtype": "bfloat16"}),
    Case("135M", tokens=1024, longest=512),
    Case("135M, checkpointing", settings={"activation_checkpointing": True}),
    Case("135M, reference", kl_coef=0.1),
    Case("135M, LoRA", tokens=1024, longest=512, settings={"lora_rank": 32}),
    Case("135M, LoRA, checkpointing", settings={"lora_rank": 32, "activation_checkpointing": True}),
    Case("135M, LoRA, 2 ranks", ranks=2, **FEW, settings={"lora_rank": 32}),
    Case("135M, resharding", settings={"reshard_after_forward": True}),
    Case("135M, 1 rank", **FEW, gradients=True),
    Case("135M, 2 ranks", ranks=2, **FEW, gradients=True),
    Case("135M, 4 ranks", ranks=4, **FEW, gradients=True),
    Case("135M, 4 ranks, unsharded gradients", ranks=4, **FEW, settings=UNSHARDED, gradients=True),
)


def measure(case: Case, model: Path, rank: int, directory: Path) -> None:
    """The body of one rank's process: writes its figures to ``directory``."""
    return_freed_memory()
    device_state.keep_freed_memory = lambda *_, **__: return_freed_memory()  # type: ignore[attr-defined]
    config = case.config(model)
    update(config, case, TOY, (rank, directory / "warm"), (1,))
    head._spare.clear()
    gc.collect()
    return_freed_memory()
    before = resident()
    micro_batches = (1, 3) if case.gradients else (3,)
    peaks, asleep = update(config, case, model, (rank, directory / "meeting"), micro_batches)
    figures = {"peak_bytes": peaks[-1] - before, "asleep_bytes": asleep - before}
    if case.gradients:
        figures["gradient_bytes"] = peaks[1] - peaks[0]
    (directory / f"rank-{rank}.json").write_text(json.dumps(figures))


def update(
    config: Config, case: Case, model: Path, place: tuple[int, Path], micro_batches: tuple[int, ...]
) -> tuple[list[int], int]:
    """Peaks of updates of so many micro-batches each, and what the rank holds when it sleeps after them.

    ``place``: its number and where the ranks meet.
    """
    rank, meeting = place
    learner = LearnerRank(model, config, rank=rank, world_size=case.ranks, meeting_point=f"file://{meeting}")
    peaks = []
    for count in micro_batches:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        learner.update(largest_update(case.ranks, case.tokens, case.longest, count), rollout=0)
        peaks.append(resident("VmHWM"))
    head._spare.clear()
    learner.sleep()
    asleep = resident()
    learner.wake()
    learner.close()
    return peaks, asleep


def run(case: Case, model: Path) -> dict[str, Any]:
    """The case's figures beside the plan's."""
    started, context = time.monotonic(), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        ranks = [context.Process(target=measure, args=(case, model, rank, Path(name))) for rank in range(case.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"{case.name}: ranks ended with {[process.exitcode for process in ranks]}")
        told = [json.loads((Path(name) / f"rank-{rank}.json").read_text()) for rank in range(case.ranks)]
    measured = {key: max(rank[key] for rank in told) for key in told[0]}
    plan = plan_learner(case.config(model), read_shape(model))
    return {
        "case": case.name,
        "ranks": case.ranks,
        **measured,
        "planned_peak_bytes": plan.peak_bytes,
        "plan_error": plan.peak_bytes / measured["peak_bytes"] - 1.0,
        "planned_asleep_bytes": plan.asleep_bytes,
        "planned_gradient_bytes": plan.gradient_bytes,
        "seconds": time.monotonic() - started,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that the plan is judged by."""
    gradients = {row["case"]: row["gradient_bytes"] for row in rows if "gradient_bytes" in row}
    return {
        "plan_error_max": max(abs(row["plan_error"]) for row in rows),
        "gradient_bytes_4_over_1_ranks": gradients["135M, 4 ranks"] / gradients["135M, 1 rank"],
        "gradient_bytes_4_over_1_ranks_unsharded": gradients["135M, 4 ranks, unsharded gradients"]
        / gradients["135M, 1 rank"],
    }


def write_model(directory: Path) -> None:
    """Random weights in SmolLM2-135M's shape."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(**SMOL), dtype=torch.float32).save_pretrained(directory)


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per case, then the summary")
    parser.add_argument("--only", help="cases whose name contains this; there is no summary then")
    parser.add_argument("--out", type=Path, help="also write everything to this file, with the machine's description")
    parser.add_argument("--shape", choices=SHAPES, help="one rank at this shape under the config files")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="with --shape: a key's value")
    parser.add_argument("config", nargs="*", type=Path, help="with --shape: config files")
    chosen = parser.parse_args()
    if chosen.shape:
        print(json.dumps(figures := measure_shape(chosen.shape, chosen.config, chosen.set), indent=2))
        if chosen.out:
            chosen.out.write_text(json.dumps(figures, indent=2) + "\n")
        return
    started, rows = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        models = {"toy": TOY, "135M": Path(name)}
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(write_model, (models["135M"],))
        for case in CASES:
            if chosen.only is None or chosen.only in case.name:
                rows.append(row := run(case, models[case.model]))
                print(json.dumps(row) if chosen.json else shown(row), flush=True)
    if chosen.only is not None:
        return
    figures = summary(rows) | {"seconds": time.monotonic() - started}
    print(json.dumps(figures))
    if chosen.out:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__}
        chosen.out.write_text(json.dumps({"machine": machine, "rows": rows} | figures, indent=2) + "\n")


def shown(row: dict[str, Any]) -> str:
    """A line of the table, in MiB, the plan's in brackets."""
    pairs = [(name, row.get(f"{name}_bytes"), row[f"planned_{name}_bytes"]) for name in ("peak", "gradient", "asleep")]
    numbers = "  ".join(
        f"{name} {got / 2**20:,.0f} ({plan / 2**20:,.0f})" for name, got, plan in pairs if got is not None
    )
    return f"{row['case']:36} {numbers}  error {100 * row['plan_error']:+.1f} %  {row['seconds']:.0f} s"


if __name__ == "__main__":
    main()
