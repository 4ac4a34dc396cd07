"""The whole workflow through the command line: phase 1 on two ranks, collection, phase 2, on real parts."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlep.core.jsonl import read_lines
from tests.small import BASE, FRESH, PROMPTS, REPLAYS, options, rlep, small_task


@dataclass(frozen=True)
class Workflow:
    """Where the runs of this file lie."""

    home: Path
    overrides: list[str]

    def lines(self, run: str, file: str) -> list[dict[str, Any]]:
        return read_lines(self.home / run / f"{file}.jsonl")

    def at(self, run: str) -> list[str]:
        return options([*self.overrides, f'run.directory="{self.home / run}"', f"run.name={run}"])


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Phase 1, collection and phase 2, once for the file."""
    home = tmp_path_factory.mktemp("workflow")
    flow = Workflow(home, small_task(home))
    rlep("train", BASE, *flow.at("one"), "--set", "learner.ranks=2", "--set", "learner.cpus=0.25")
    policy = f'model.path="{home / "one" / "checkpoints" / "step-000003" / "model"}"'
    rlep("collect", BASE, *flow.at("collect"), "--set", policy)
    rlep("train", BASE, *flow.at("two"), "--set", f"replay.count={REPLAYS}")
    return flow


def test_every_step_has_exactly_g_fresh_rollouts_and_the_replays_the_pool_handed_out_reach_the_loss(
    workflow: Workflow,
) -> None:
    held = {line["prompt_id"]: line["admitted"] for line in workflow.lines("collect", "collection")}
    assert sum(held.values()) > 0
    lines = workflow.lines("two", "metrics")
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
    # 3 steps x 4 prompts of 16: each prompt at most once, with min(M, what the pool holds of it)
    planned = sorted((min(REPLAYS, count) for count in held.values()), reverse=True)[: 3 * PROMPTS]
    replayed = sum(line["metrics"]["replay/trajectories"] for line in lines)
    assert 0 < replayed <= sum(planned)


def test_without_replays_nothing_of_the_pool_reaches_the_loss(workflow: Workflow) -> None:
    for line in workflow.lines("one", "metrics"):
        assert line["metrics"]["replay/trajectories"] == 0
        assert line["metrics"]["loss/trajectories/replay"] == 0
        assert line["metrics"]["loss/trajectories/fresh"] == PROMPTS * FRESH


@pytest.mark.parametrize("run", ["one", "two"])
def test_after_every_update_generator_and_learner_agree_on_log_probs(workflow: Workflow, run: str) -> None:
    gaps = [line["metrics"]["weights/logprob_gap"] for line in workflow.lines(run, "metrics")]
    assert len(gaps) == 3
    assert max(gaps) <= 1e-4
    assert max(gaps) > 0, "a gap of exactly 0 in float32 would mean that nothing was compared"


def test_the_updates_moved_the_weights_and_the_checkpoint_is_what_transformers_loads(workflow: Workflow) -> None:
    base = AutoModelForCausalLM.from_pretrained(workflow.home / "task" / "model")
    trained = AutoModelForCausalLM.from_pretrained(workflow.home / "two" / "checkpoints" / "step-000003" / "model")
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = (base.state_dict()[name] - trained.state_dict()[name]).abs().max()
    # AdamW moves a weight by at most about lr per update: 3 steps x 2 updates at 1/5, 2/5 and 3/5 of 2e-4
    assert 1e-6 < float(moved) < 2 * 2e-4 * (0.2 + 0.4 + 0.6) * 2


def test_evaluate_in_a_fresh_process_gives_the_accuracy_that_training_reported(workflow: Workflow) -> None:
    reported = workflow.lines("two", "evaluations")[-1]
    model = workflow.home / "two" / "checkpoints" / "step-000003" / "model"
    out = workflow.home / "evaluation"
    done = rlep(
        *("evaluate", model, workflow.home / "heldout.parquet", "--config", BASE, "--json", "--out", out),
        *options([*workflow.overrides, f'model.path="{model}"']),
    )
    (row,) = json.loads(done.stdout)
    assert (row["questions"], row["n"]) == (6, 2)
    assert row["avg"] == pytest.approx(reported["avg"])
    samples = pq.read_table(out / "samples.parquet").to_pylist()
    assert len(samples) == 12
    correct = np.mean([sample["status"] == "correct" for sample in samples])
    assert correct == pytest.approx(row["avg"])


@pytest.fixture(scope="module")
def untied(workflow: Workflow) -> Path:
    """Where phase 2 ran again for two steps, from the same weights in a model of which the output head is its own."""
    home = workflow.home / "untied"
    model = AutoModelForCausalLM.from_pretrained(workflow.home / "task" / "model", tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    shutil.copytree(workflow.home / "task" / "model", home / "model")
    model.save_pretrained(home / "model")
    assert "lm_head.weight" in load_file(home / "model" / "model.safetensors")
    own = [f'model.path="{home / "model"}"', "run.name=untied", "run.steps=2", f"replay.count={REPLAYS}"]
    rlep("train", BASE, *workflow.at("untied/run"), *options(own))
    return home / "run"


def test_untied_embeddings_agree_after_updates_too(workflow: Workflow, untied: Path) -> None:
    gaps = [line["metrics"]["weights/logprob_gap"] for line in workflow.lines("untied/run", "metrics")]
    assert len(gaps) == 2
    assert 0 < max(gaps) <= 1e-4
    trained = load_file(untied / "checkpoints" / "step-000002" / "model" / "model.safetensors")
    assert not torch.equal(trained["lm_head.weight"], trained["model.embed_tokens.weight"])


def test_the_same_seed_gives_the_same_prompts_and_draws(workflow: Workflow, untied: Path) -> None:
    first, again = (workflow.lines(run, "metrics")[0]["metrics"] for run in ("two", "untied/run"))
    for name in ("rollout/tokens", "rollout/accuracy", "replay/trajectories", "replay/tokens", "group/replays"):
        assert first[name] == again[name], name


def test_pool_commands_show_what_was_collected(workflow: Workflow) -> None:
    admitted = sum(line["admitted"] for line in workflow.lines("collect", "collection"))
    stats = json.loads(rlep("pool", "stats", BASE, *options(workflow.overrides), "--json").stdout)
    assert stats["trajectories"] == admitted
    covered = next(line["prompt_id"] for line in workflow.lines("collect", "collection") if line["admitted"])
    shown = rlep("pool", "show", covered, BASE, *options(workflow.overrides)).stdout
    assert "\\boxed{" in shown
    assert "correct by math" in shown


def test_report_names_both_runs(workflow: Workflow) -> None:
    out = workflow.home / "report"
    done = rlep("report", workflow.home / "one", workflow.home / "collect", workflow.home / "two", "--out", out)
    assert "report.html" in done.stdout
    page = (out / "report.html").read_text()
    assert "<script" not in page
    assert (out / "report.png").stat().st_size > 10_000


def test_the_run_directory_says_what_was_run(workflow: Workflow) -> None:
    config = json.loads((workflow.home / "two" / "config.json").read_text())
    assert config["replay"]["count"] == REPLAYS
    manifest = json.loads((workflow.home / "two" / "manifest.json").read_text())
    assert manifest["packages"]["torch"].startswith("2.13")
    assert [event["event"] for event in workflow.lines("two", "events")].count("checkpoint_saved") == 3
