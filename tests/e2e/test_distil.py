"""A teacher fills a pool and teaches a run that replays its responses: with real actors, as a user would do it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rlep.check.inputs import fingerprint
from rlep.check.pool_place import pool_place
from rlep.config.settings import load_config
from rlep.core.jsonl import read_lines
from rlep.services.pool.rpc.places import served
from tests.small import BASE, options, rlep, small_task


def sharper(model: Path, directory: Path, factor: float) -> Path:
    """The same model with logits ``factor`` times as large: it is surer of what it knows."""
    shutil.copytree(model, directory)
    file = directory / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"model.norm.weight": factor * weights["model.norm.weight"]}, file, {"format": "pt"})
    return directory


def test_a_run_learns_from_a_teacher_and_replays_what_it_wrote(tmp_path: Path) -> None:
    overrides = small_task(tmp_path)
    student = tmp_path / "task" / "model"
    teacher = sharper(student, tmp_path / "teacher", 1.5)
    collected = f"run.directory={tmp_path / 'collect'}"
    rlep("collect", BASE, *options([*overrides, collected, f'model.path="{teacher}"']))
    with served(pool_place(load_config([BASE], overrides)), deadline=60.0) as pool:
        pool.open(read_only=True)
        assert list(pool.stats().by_policy) == [f"rlep:{fingerprint(teacher)}@0"]

    run = tmp_path / "run"
    overrides += [f"run.directory={run}", "run.steps=2", "replay.count=1", "loss.kl_coef=1", "loss.kl_estimator=k2"]
    overrides += [
        "loss.reward_coef=0",
        f'loss.teacher="{teacher}"',
        "advantage.drop_constant=false",
        "update.prompts=4",
    ]
    rlep("train", BASE, *options(overrides))
    steps = [line["metrics"] for line in read_lines(run / "metrics.jsonl")]
    assert len(steps) == 2
    for step in steps:
        tokens = {source: step[f"loss/tokens/{source}"] for source in ("fresh", "replay")}
        for source, count in tokens.items():
            distance = step[f"update/reference_kl/{source}"]
            assert distance > 1e-6  # of a teacher with the policy's own weights it is 0 at first
            # Without rewards a token's term is its KL, and the step's one update takes the mean over all tokens.
            assert step[f"advantage/mass/{source}"] == 0.0
            assert step[f"loss/part/{source}"] == pytest.approx(distance * count / sum(tokens.values()), rel=1e-5)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["model_digest"] == f"{fingerprint(student)}+{fingerprint(teacher)}"

    shutil.rmtree(teacher)
    sharper(student, teacher, 2.0)
    refused = rlep("train", BASE, *options([*overrides, "run.steps=3"]), check=False)
    assert refused.returncode == 1, refused.stderr
    assert f"was made with model_digest {manifest['model_digest']}, now it is" in " ".join(refused.stderr.split())
