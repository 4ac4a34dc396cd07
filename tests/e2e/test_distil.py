"""A teacher fills a pool and teaches a run that replays its responses: with real actors, as a user would do it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
    overrides += ["loss.reward_coef=0", f'loss.teacher="{teacher}"', "advantage.drop_constant=false"]
    rlep("train", BASE, *options(overrides))
    first, second = (line["metrics"] for line in read_lines(run / "metrics.jsonl"))
    for source in ("fresh", "replay"):
        assert first[f"update/reference_kl/{source}"] > 1e-3
        # Without rewards the loss is the KL alone: the means over the tokens of each source, added up.
        assert second[f"update/tokens/{source}"] > 0
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["model_digest"] == f"{fingerprint(student)}+{fingerprint(teacher)}"

    shutil.rmtree(teacher)
    sharper(student, teacher, 2.0)
    refused = rlep("train", BASE, *options([*overrides, "run.steps=3"]), check=False)
    assert refused.returncode == 2, refused.stderr
    assert f"was made with model_digest {manifest['model_digest']}, now it is" in " ".join(refused.stderr.split())
