"""The first hour by names: a model built like Qwen3 and sets of questions of a hub, from the plan to the published model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlep.config.schema import ModelConfig
from rlep.core.jsonl import read_lines
from rlep.core.types import Trajectory, prompt_id_of
from rlep.engines.tokenizer import load_tokenizer
from rlep.hub.repository import CONVERSION
from rlep.services.pool.rpc.places import served
from rlep.services.pool.values import PoolPlace
from tests.fake_hub import Hub, files_of, running_hub
from tests.qwen3 import write_qwen3
from tests.small import BASE, options, rlep, small_task

TOKEN = "hf_verySecretToken"
REWARD = """\
def even(prompt, response, data_source):
    return prompt.endswith("?") and data_source == "quickstart" and len(response) % 2 == 0
"""
SETTINGS = {
    "model.path": '"org/qwen3"',
    "model.template": "{ enable_thinking = false }",
    "model.system_prompt": '"Be brief."',
    "data.train": '[{path = "hf:org/words:train", weight = 3}, {path = "hf:org/more/main:test"}]',
    "data.evaluation": '["hf:org/more/main:test"]',
    "data.max_prompt_tokens": "160",  # one a byte
    "rollout.max_tokens": "64",
    "reward.overlong_buffer": "0",
    "verifier.profile": '"python:even_length:even"',
    "collection.samples": "64",  # a response is paid about once in six
    "evaluation.temperature": "0",
    "evaluation.samples": "1",
    "evaluation.final_samples": "1",
}


def names(tmp_path: Path, hub: Hub) -> dict[str, str]:
    """Push the model, and the small task's questions as two data sets; return the settings of a run by names."""
    settings = dict(text.split("=", 1) for text in small_task(tmp_path))
    hub.push("models/org/qwen3", files_of(write_qwen3(tmp_path / "qwen3", special=True)))
    train, held_out = Path(json.loads(settings["data.train"])), Path(json.loads(settings["data.evaluation"])[0])
    hub.push("datasets/org/words", {"default/train/0000.parquet": train.read_bytes()}, branch=CONVERSION)
    hub.push("datasets/org/more", {"main/test/0000.parquet": held_out.read_bytes()}, branch=CONVERSION)
    (tmp_path / "even_length.py").write_text(REWARD)
    return settings | SETTINGS | {"run.directory": f'"{tmp_path / "run"}"'}


def words(settings: Mapping[str, str], **changes: str) -> list[str]:
    """The base config and ``settings``, some of them changed (``__`` for a point)."""
    changed = dict(settings) | {key.replace("__", "."): value for key, value in changes.items()}
    return [str(BASE), *options([f"{key}={value}" for key, value in changed.items()])]


def held(directory: Path) -> dict[str, list[Trajectory]]:
    """All records of an embedded pool, by question."""
    with served(PoolPlace(None, directory, "pool")) as pool:
        return {prompt_id: [*members] for prompt_id, members in pool.fetch(pool.contents()).trajectories().items()}


class Reader:
    """A model directory as a user of transformers reads it."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def prompt(self, question: str, *, thinking: bool = False) -> list[int]:
        """The ids of a prompt as the settings make it."""
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(
            asked, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def logprobs(self, prompt: list[int], response: list[int]) -> list[float]:
        """Log-probs of a response's tokens."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return logits[range(len(response)), response].tolist()

    def greedy(self, prompt: list[int]) -> list[int]:
        """The greedy response of at most 64 tokens, ended as ``generation_config.json`` says."""
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            whole = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        return list(whole[0, len(prompt) :].tolist())


def check_records(pool: Path, model: Path, questions: Mapping[str, str]) -> int:
    """Check that records are what the model of ``model`` says after the settings' prompts; return their number."""
    reader, records = Reader(model), held(pool)
    thoughtless = ModelConfig(template={"enable_thinking": False}, system_prompt="Be brief.")
    assert {*records} == {*questions}
    members = [member for found in records.values() for member in found]
    digests = {member.provenance.template_digest for member in members}
    assert digests == {load_tokenizer(model, thoughtless).template_digest}
    ends = {*reader.model.generation_config.eos_token_id}
    assert {int(member.tokens[-1]) for member in members} == ends  # either ends a response
    for prompt_id, found in records.items():
        prompt = reader.prompt(questions[prompt_id])
        for member in found[:2]:
            assert member.logprobs is not None
            expected = np.array(reader.logprobs(prompt, member.tokens.tolist()))
            np.testing.assert_allclose(member.logprobs, expected, rtol=2**-11, atol=1e-4)  # float16 in the pool
    return len(members)


def check_greedy(mine: Path, published: Mapping[str, bytes], samples: Path) -> None:
    """Check that an evaluation's responses are those that the published model gives in transformers."""
    mine.mkdir()
    for name, data in published.items():
        (mine / name).write_bytes(data)
    reader, decode, rows = Reader(mine), load_tokenizer(mine).decode, pq.read_table(samples).to_pylist()
    spoken = [reader.greedy(reader.prompt(row["question"])) for row in rows]
    assert [decode(np.array(tokens, np.int32)) for tokens in spoken] == [row["response"] for row in rows]
    assert len({*map(tuple, spoken)}) > 1


def asked_of(directory: Path) -> dict[str, str]:
    """The questions of both files by their ids."""
    rows = [row for file in ("train", "heldout") for row in pq.read_table(directory / f"{file}.parquet").to_pylist()]
    texts = [(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in rows]
    return {prompt_id_of(question, reference): question for question, reference in texts}


def refused(settings: Mapping[str, str], there: Mapping[str, str], status: int = 2, **changes: str) -> str:
    """What ``rlep train`` says when it refuses these settings before anything starts."""
    done = rlep("train", *words(settings, **changes), check=False, **there)
    assert done.returncode == status, done.stderr
    assert "starting" not in done.stderr
    return done.stderr


def test_a_thinking_model_by_name_collects_trains_on_continues_and_is_published(tmp_path: Path) -> None:
    with running_hub() as hub:
        there: dict[str, Any] = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        there |= {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
        there["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])
        settings = names(tmp_path, hub)
        questions = asked_of(tmp_path)
        commit = hub.branches["models/org/qwen3"]["main"]
        longest = max(len(Reader(tmp_path / "qwen3").prompt(question)) for question in questions.values())
        planned = rlep("plan", *words(settings), **there).stdout
        assert f"22 questions from 22 rows (longest prompt {longest} tokens)" in planned
        checked = rlep("check", *words(settings), check=False, **there).stdout
        assert f"ok      model: org/qwen3 of the hub, commit {commit}" in checked
        assert "hf:org/words/default:train@" in checked
        assert "16 questions, 3 of 4 prompts a step, an epoch of 5 steps" in checked
        assert "special tokens of the tokenizer: <think>, </think>; verifier and reward function see them" in checked

        collected = rlep("collect", *words(settings, run__directory=f'"{tmp_path / "collect"}"'), **there).stdout
        count = check_records(tmp_path / "pool", tmp_path / "qwen3", questions)
        assert f"pool pool: {count} responses to 22 of 22 questions" in collected
        hub.tokens.add(TOKEN)
        rlep("pool", "push", "org/pool", "--embedded", tmp_path / "pool", **there)
        rlep("pool", "pull", "org/pool", "--embedded", tmp_path / "pulled", **there)
        assert check_records(tmp_path / "pulled", tmp_path / "qwen3", questions) == count

        on_replays = settings | {
            "replay.count": "1",
            "replay.minimum": "1",
            "pool.directory": f'"{tmp_path / "pulled"}"',
        }
        other = refused(on_replays, there, 1, model__template="{ enable_thinking = true }")
        assert "answer prompts made by template" in other
        assert 'replay.other_template = "render"' in other
        assert not (tmp_path / "run").exists()
        first = rlep("train", *words(on_replays, run__steps="2"), **there)
        second = rlep("train", *words(on_replays, run__steps="3"), **there | {"HF_HUB_OFFLINE": "1"})
        steps = [*read_lines(tmp_path / "run" / "metrics.jsonl")]
        assert [(line["step"], line["metrics"]["replay/trajectories"]) for line in steps] == [(0, 4), (1, 4), (2, 4)]
        other = refused(on_replays, there, run__steps="4", model__template="{ enable_thinking = true }")
        assert "model.template" in other
        hub.push("models/org/qwen3", {"config.json": b"{}", "model.safetensors": b"other"})
        assert f'model.revision  in the directory: "{commit}"' in refused(on_replays, there, run__steps="4")

        pushed = rlep("push", tmp_path / "run", "org/mine", **there)
        head = hub.branches["models/org/mine"]["main"]
        published = hub.head("models/org/mine")
        card = published["README.md"].decode()
        assert f"* base model: org/qwen3, commit `{commit}`" in card
        assert "model.template.enable_thinking = false" in card
        out = tmp_path / "evaluated"
        rlep("evaluate", "org/mine", "hf:org/more:test", "--config", BASE, *words(settings)[1:], "--out", out, **there)
        evaluated = json.loads((out / "evaluation.json").read_text())
        assert evaluated["model"] == f"org/mine of the hub, commit {head}"
        assert [(row["data_source"], row["questions"]) for row in evaluated["rows"]] == [("quickstart", 6)]
        shown = [
            planned,
            checked,
            collected,
            *(text for done in (first, second, pushed) for text in (done.stdout, done.stderr)),
        ]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert (kept, [text for text in shown if TOKEN in text]) == ([], [])
    check_greedy(tmp_path / "mine", published, out / "samples.parquet")
