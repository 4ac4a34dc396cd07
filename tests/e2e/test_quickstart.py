"""``rlep quickstart`` as a new user runs it, on less of everything: the whole workflow through the command line, on real parts.

Phase 1 on two ranks, collection, phase 2 and the report; then what other commands make of the same runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from rlep.core.jsonl import read_lines
from tests.small import BASE, options, rlep

QUESTIONS, HELD_OUT, CANDIDATES = 512, 200, 16
STEPS, PROMPTS, FRESH, REPLAYS, PER_UPDATE, SAMPLES = 3, 4, 4, 2, 2, 2
LESS = [
    f"rollout.prompts={PROMPTS}",
    f"rollout.fresh={FRESH}",
    f"update.prompts={PER_UPDATE}",
    "evaluation.every=0",
    f"evaluation.samples={SAMPLES}",
    f"evaluation.final_samples={SAMPLES}",
    "checkpoint.every=1",
    f"collection.samples={CANDIDATES}",
    "generator.cpus=0.5",
    "learner.cpus=0.5",
]
TWO_RANKS = ["learner.ranks=2", "learner.cpus=0.25"]
# The command itself; its stages' configs are read with LESS, that of phase 1 with TWO_RANKS too.
QUICKSTART = f"""
import importlib
from rlep.cli import main
workflow = importlib.import_module("rlep.cli.quickstart")
load = workflow.load_config
def with_less(files, overrides):
    return load(files, [*overrides, *{LESS}, *({TWO_RANKS} if files[-1].stem == "phase1" else [])])
workflow.load_config = with_less
main()
"""


@dataclass(frozen=True)
class Workflow:
    """Where the quickstart's runs lie, and what it said."""

    home: Path
    said: str

    @property
    def overrides(self) -> list[str]:
        """What its runs have in common."""
        task = self.home / "task"
        return [
            f'model.path="{task / "model"}"',
            f'data.train="{task / "train.parquet"}"',
            f'data.evaluation=["{task / "heldout.parquet"}"]',
            f'pool.directory="{self.home / "pool"}"',
            *LESS,
        ]

    def lines(self, run: str, file: str) -> list[dict[str, Any]]:
        return read_lines(self.home / run / f"{file}.jsonl")


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The quickstart, once for the file."""
    home = tmp_path_factory.mktemp("workflow")
    command = [sys.executable, "-c", QUICKSTART, "quickstart", "--directory", str(home), "--steps", str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Workflow(home, done.stdout)


def test_the_quickstart_runs_every_stage_and_ends_with_the_comparison(workflow: Workflow) -> None:
    for stage in ("phase 1: train without replay", "collect: its verified", "phase 2: from the base again"):
        assert stage in workflow.said
    assert str(workflow.home / "report" / "report.html") in workflow.said.replace("\n", "")
    assert (workflow.home / "report" / "report.svg").exists()

    base = [workflow.lines(run, "evaluations")[0]["avg"] for run in ("baseline", "rlep")]
    assert base[0] == base[1]  # the same base, questions and seeds
    assert 0.08 <= base[0] <= 0.20

    answered = workflow.lines("collect", "collection")
    assert len(answered) == QUESTIONS
    assert {line["candidates"] for line in answered} == {CANDIDATES}
    assert np.mean([line["admitted"] > 0 for line in answered]) >= 0.25  # of 64, after 96 steps: about 0.96


def test_every_step_has_exactly_g_fresh_rollouts_and_the_replays_the_pool_handed_out_reach_the_loss(
    workflow: Workflow,
) -> None:
    held = {line["prompt_id"]: line["admitted"] for line in workflow.lines("collect", "collection")}
    assert sum(held.values()) > 0
    lines = workflow.lines("rlep", "metrics")
    assert [line["step"] for line in lines] == [0, 1, 2]
    for metrics in (line["metrics"] for line in lines):
        assert metrics["rollout/samples"] == PROMPTS * FRESH
        assert metrics["loss/trajectories/fresh"] == PROMPTS * FRESH
        assert metrics["loss/tokens/fresh"] == metrics["rollout/tokens"]
        assert metrics["loss/trajectories/replay"] == metrics["replay/trajectories"]
        assert metrics["loss/tokens/replay"] == metrics["replay/tokens"]
        # groups with 0, 1, 2 replays: all P of them, and together the replays that were handed out
        assert sum(metrics["group/replays"]) == PROMPTS
        assert metrics["group/replays"][1] + 2 * metrics["group/replays"][2] == metrics["replay/trajectories"]
        assert sum(metrics["group/fresh_successes"]) == PROMPTS
    # 3 steps x 4 prompts of 512: each prompt at most once, with min(M, what the pool holds of it)
    planned = sorted((min(REPLAYS, count) for count in held.values()), reverse=True)[: STEPS * PROMPTS]
    replayed = sum(line["metrics"]["replay/trajectories"] for line in lines)
    assert 0 < replayed <= sum(planned)


def test_without_replays_nothing_of_the_pool_reaches_the_loss(workflow: Workflow) -> None:
    for line in workflow.lines("baseline", "metrics"):
        assert line["metrics"]["replay/trajectories"] == 0
        assert line["metrics"]["loss/trajectories/replay"] == 0
        assert line["metrics"]["loss/trajectories/fresh"] == PROMPTS * FRESH


@pytest.mark.parametrize("run", ["baseline", "rlep"])
def test_after_every_update_generator_and_learner_agree_on_log_probs(workflow: Workflow, run: str) -> None:
    gaps = [line["metrics"]["weights/logprob_difference"] for line in workflow.lines(run, "metrics")]
    assert len(gaps) == 3
    assert max(gaps) <= 1e-4
    assert max(gaps) > 0, "a gap of exactly 0 in float32 would mean that nothing was compared"


def test_the_updates_moved_the_weights_and_the_checkpoint_is_what_transformers_loads(workflow: Workflow) -> None:
    base = AutoModelForCausalLM.from_pretrained(workflow.home / "task" / "model")
    trained = AutoModelForCausalLM.from_pretrained(workflow.home / "rlep" / "checkpoints" / "step-000003" / "model")
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = (base.state_dict()[name] - trained.state_dict()[name]).abs().max()
    # AdamW moves a weight by at most about lr per update: 3 steps x 2 updates at 1/5, 2/5 and 3/5 of 2e-4
    assert 1e-6 < float(moved) < 2 * 2e-4 * (0.2 + 0.4 + 0.6) * 2


def test_evaluate_in_a_fresh_process_gives_the_accuracy_that_training_reported(workflow: Workflow) -> None:
    reported = workflow.lines("rlep", "evaluations")[-1]
    model = workflow.home / "rlep" / "checkpoints" / "step-000003" / "model"
    out = workflow.home / "evaluation"
    done = rlep(
        *("evaluate", model, workflow.home / "task" / "heldout.parquet", "--config", BASE, "--json", "--out", out),
        *options([*workflow.overrides, f'model.path="{model}"']),
    )
    (row,) = json.loads(done.stdout)
    assert (row["questions"], row["n"]) == (HELD_OUT, SAMPLES)
    assert row["avg"] == pytest.approx(reported["avg"])
    samples = pq.read_table(out / "samples.parquet").to_pylist()
    assert len(samples) == HELD_OUT * SAMPLES
    correct = np.mean([sample["status"] == "correct" for sample in samples])
    assert correct == pytest.approx(row["avg"])


def test_the_same_seed_gives_the_same_prompts_and_responses(workflow: Workflow) -> None:
    first, again = (workflow.lines(run, "metrics")[0]["metrics"] for run in ("baseline", "rlep"))
    for name in ("rollout/tokens", "rollout/accuracy", "rollout/samples", "group/fresh_successes"):
        assert first[name] == again[name], name


def test_pool_commands_show_what_was_collected(workflow: Workflow) -> None:
    admitted = sum(line["admitted"] for line in workflow.lines("collect", "collection"))
    stats = json.loads(rlep("pool", "stats", BASE, *options(workflow.overrides), "--json").stdout)
    assert stats["trajectories"] == admitted
    covered = next(line["prompt_id"] for line in workflow.lines("collect", "collection") if line["admitted"])
    shown = rlep("pool", "show", covered, BASE, *options(workflow.overrides)).stdout
    assert "\\boxed{" in shown
    assert "correct, graded by math" in shown


def test_report_names_both_runs(workflow: Workflow) -> None:
    out = workflow.home / "again"
    done = rlep("report", workflow.home / "baseline", workflow.home / "collect", workflow.home / "rlep", "--out", out)
    assert "report.html" in done.stdout
    page = (out / "report.html").read_text()
    assert "<script>" in page
    assert "<script src" not in page  # the page is one file
    assert (out / "report.svg").stat().st_size > 2_000


def test_the_run_directory_says_what_was_run(workflow: Workflow) -> None:
    config = json.loads((workflow.home / "rlep" / "config.json").read_text())
    assert config["replay"]["count"] == REPLAYS
    manifest = json.loads((workflow.home / "rlep" / "manifest.json").read_text())
    assert manifest["packages"]["torch"].startswith("2.13")
    assert [event["event"] for event in workflow.lines("rlep", "events")].count("checkpoint_saved") == 3
