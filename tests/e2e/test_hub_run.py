"""The first hour by names: a model and two sets of questions of a hub through check, train, continue, push and evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlep.core.jsonl import read_lines
from rlep.hub.repository import CONVERSION
from tests.fake_hub import Hub, files_of, running_hub
from tests.small import BASE, options, rlep, small_task

TOKEN = "hf_verySecretToken"


def names(tmp_path: Path, hub: Hub) -> list[str]:
    """Push the small task, its questions as two data sets, and return the settings that name them."""
    settings = dict(text.split("=", 1) for text in small_task(tmp_path))
    hub.push("models/org/tiny", files_of(Path(json.loads(settings["model.path"]))))
    train, held_out = Path(json.loads(settings["data.train"])), Path(json.loads(settings["data.evaluation"])[0])
    hub.push("datasets/org/words", {"default/train/0000.parquet": train.read_bytes()}, branch=CONVERSION)
    hub.push("datasets/org/more", {"main/test/0000.parquet": held_out.read_bytes()}, branch=CONVERSION)
    named = {
        "model.path": "org/tiny",
        "data.train": '[{path = "hf:org/words:train", weight = 3}, {path = "hf:org/more/main:test"}]',
        "data.evaluation": '["hf:org/more/main:test"]',
        "run.directory": f'"{tmp_path / "run"}"',
    }
    return options([f"{key}={value}" for key, value in (settings | named).items()])


def test_a_run_by_names_trains_continues_and_is_published(tmp_path: Path) -> None:
    with running_hub() as hub:
        there: dict[str, Any] = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        there |= {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
        words = [str(BASE), *names(tmp_path, hub)]
        commit = hub.branches["models/org/tiny"]["main"]
        shown = [checked := rlep("check", *words, check=False, **there).stdout]
        assert f"ok      model: org/tiny of the hub, commit {commit}" in checked
        assert "hf:org/words/default:train@" in checked
        assert "16 questions, 3 of 4 prompts a step, an epoch of 5 steps" in checked
        first = rlep("train", *words, "--set", "run.steps=2", **there)
        second = rlep("train", *words, "--set", "run.steps=3", **there | {"HF_HUB_OFFLINE": "1"})
        steps = [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
        assert steps == [0, 1, 2]
        hub.push("models/org/tiny", {"config.json": b"{}", "model.safetensors": b"other"})
        refused = rlep("train", *words, "--set", "run.steps=4", check=False, **there)
        assert refused.returncode == 2
        assert f'model.revision  in the directory: "{commit}"' in refused.stderr

        hub.tokens.add(TOKEN)
        pushed = rlep("push", tmp_path / "run", "org/mine", **there)
        published = hub.commits["models/org/mine"][hub.branches["models/org/mine"]["main"]]
        assert f"* base model: org/tiny, commit `{commit}`" in published["README.md"].decode()
        out = tmp_path / "evaluated"
        rlep("evaluate", "org/mine", "hf:org/more:test", "--config", BASE, *words[1:], "--out", out, **there)
        evaluated = json.loads((out / "evaluation.json").read_text())
        assert evaluated["model"] == f"org/mine of the hub, commit {hub.branches['models/org/mine']['main']}"
        assert [(row["data_source"], row["questions"]) for row in evaluated["rows"]] == [("quickstart", 6)]
        shown += [text for done in (first, second, refused, pushed) for text in (done.stdout, done.stderr)]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert (kept, [text for text in shown if TOKEN in text]) == ([], [])
