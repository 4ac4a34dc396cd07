"""A small study over made-up runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlep.study.conduct import Base, conduct
from rlep.study.study_plan import PhasePlan, Study, read_study
from rlep.study.study_report import Found

STEP = 100
"""Tokens that a made-up step generates, scores and trains on: 500 of compute."""


def study_file(home: Path, text: str = "") -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "base.toml").write_text("[run]\nsteps = 4\n[rollout]\nprompts = 4\nfresh = 4\n[update]\nprompts = 2\n")
    file = home / "study.toml"
    file.write_text(
        text
        or f"""
[study]
name = "small"
directory = "{home / "study"}"
base = ["base.toml"]
budget = 2000
seeds = [1, 2]
tuning_seeds = [9]

[[arm]]
name = "none"
control = true
[[arm.phase]]
command = "train"
set = {{ "replay.count" = 0 }}

[[arm]]
name = "more"
control = true
[[arm.phase]]
command = "train"
set = {{ "replay.count" = 0, "rollout.fresh" = 6 }}

[[arm]]
name = "rlep"
[[arm.phase]]
command = "train"
name = "phase 1"
set = {{ "replay.count" = 0, "run.steps" = 2 }}
[[arm.phase]]
command = "collect"
model = "phase 1"
[[arm.phase]]
command = "train"
name = "phase 2"
pool = "collect"
set = {{ "replay.count" = 2 }}

[[arm]]
name = "live"
tune = {{ "update.lr" = [0.1, 0.2] }}
[[arm.phase]]
command = "train"
set = {{ "replay.count" = 2, "replay.source" = "live" }}
"""
    )
    return file


@dataclass
class MadeUp:
    """Writes what a run leaves: accuracies by step, higher with ``update.lr = 0.2``."""

    fail: str = ""
    """Run names' command that fails."""
    fail_seed: int | None = None
    fail_rate: float | None = None
    stop_after: int | None = None
    ran: list[str] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def __call__(self, plan: PhasePlan, limit: float) -> str:
        if self.stop_after is not None and len(self.ran) >= self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(plan.directory.name)
        self.limits.append(limit)
        if (
            self.fail == plan.command
            or self.fail_seed == plan.config.run.seed
            or self.fail_rate == plan.config.update.lr
        ):
            return "exit code 1: out of luck"
        plan.directory.mkdir(parents=True, exist_ok=True)
        config = plan.config
        if plan.command == "collect":
            (plan.directory / "collection.json").write_text(json.dumps({"generated_tokens": 300, "wall_s": 7.0}))
            return ""
        right = 2 if config.update.lr == 0.2 else 1 if config.replay.count else 0
        lines, evaluations = [], []
        for step in range(config.run.steps + 1):
            if step:
                counted = {f"compute/{name}_tokens": STEP * step for name in ("generated", "scored", "trained")}
                lines.append({"step": step - 1, "wall_s": float(step), "metrics": counted})
            if step % 2 == 0:
                evaluations.append(
                    {"step": step, "wall_s": step + 0.5, "data_source": "x", "questions": 2, "n": 2, "avg": 0.5}
                )
                self.samples(plan.directory / "samples" / f"step-{step:06d}.parquet", step, right)
        for name, rows in (("metrics", lines), ("evaluations", evaluations)):
            (plan.directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return ""

    @staticmethod
    def samples(path: Path, step: int, right: int) -> None:
        """Two questions × 2: of ``b`` ``right`` samples are correct from step 2 on; of ``a`` one, at step 0 alone."""
        path.parent.mkdir(exist_ok=True)
        correct = {"a": 1 if step == 0 else 0, "b": min(right, 2) if step else 0}
        rows = [(name, "correct" if n < correct[name] else "wrong", f"{name}{n}") for name in "ba" for n in range(2)]
        columns = zip(*rows, strict=True)
        pq.write_table(pa.table(dict(zip(("prompt_id", "status", "extracted"), map(list, columns), strict=True))), path)


def base_of(study: Study) -> Base:
    assert not isinstance(study.study.base, str)
    return Base(study.study.base)


def conducted(file: Path, run: MadeUp, parallel: int = 1, grader: str = "") -> Found:
    study = read_study(file)
    return conduct(study, base_of(study), run, parallel=parallel, say=lambda _: None, name_grader=lambda _: grader)
