"""The first hour by names: a model built like Qwen3 and sets of questions of a hub, from the plan to the published model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlep.config.schema import ModelConfig
from rlep.core.jsonl import read_lines
from rlep.core.types import Trajectory, prompt_id_of
from rlep.engines.tokenizer import load_tokenizer
from rlep.hub.repository import CONVERSION
from rlep.services.pool.rpc.places import served
from rlep.services.pool.values import PoolPlace
from tests.fake_hub import Files, Hub, files_of, running_hub
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
    "collection.samples": "64",
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
    changed = {**settings} | {key.replace("__", "."): value for key, value in changes.items()}
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


def digest_of(model: Path) -> str:
    """The template digest of the settings."""
    section = ModelConfig(template={"enable_thinking": False}, system_prompt="Be brief.")
    return load_tokenizer(model, section).template_digest


def check_records(pool: Path, model: Path, questions: Mapping[str, str]) -> int:
    """Check that records are what the model of ``model`` says after the settings' prompts; return their number."""
    reader, records = Reader(model), held(pool)
    assert {*records} == {*questions}
    members = [member for found in records.values() for member in found]
    digests = {member.provenance.template_digest for member in members}
    assert digests == {digest_of(model)}
    ends = {int(member.tokens[-1]) for member in members}
    assert ends == {*reader.model.generation_config.eos_token_id}  # both of them
    for prompt_id, found in records.items():
        prompt = reader.prompt(questions[prompt_id])
        for member in found[:2]:
            expected = reader.logprobs(prompt, member.tokens.tolist())
            assert member.logprobs is not None
            assert member.logprobs.tolist() == pytest.approx(expected, rel=2**-11, abs=1e-4)  # float16 in the pool
    return len(members)


def check_said(files: Files, directory: Path, samples: Sequence[Mapping[str, str]]) -> None:
    """Check that a published model answers greedily in transformers as it did in vLLM, and not all questions alike."""
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    reader, decode = Reader(directory), load_tokenizer(directory).decode
    said = [decode(np.array(reader.greedy(reader.prompt(sample["question"])), np.int32)) for sample in samples]
    assert said == [sample["response"] for sample in samples]
    assert len({*said}) > 1


@dataclass(frozen=True)
class Terminal:
    """A user's terminal, whose environment has a token; it must show none."""

    environment: Mapping[str, str]

    def run(self, *arguments: str | Path, ends: int | None = 0, **environment: str) -> str:
        """What the command prints, after it has ended with this status, or any."""
        done = rlep(*arguments, check=False, **{**self.environment, **environment})
        shown = done.stdout + done.stderr
        assert TOKEN not in shown
        assert ends in (done.returncode, None), shown
        return shown

    def refused(self, settings: Mapping[str, str], *, ends: int = 2, **changes: str) -> str:
        """What ``rlep train`` prints when it refuses these settings before anything starts."""
        shown = self.run("train", *words(settings, **changes), ends=ends)
        assert "rlep: starting" not in shown
        return shown


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[tuple[Terminal, Hub]]:
    """A terminal whose hub is one on loopback; modules of ``tmp_path`` are found."""
    with running_hub() as hub:
        hub.tokens.add(TOKEN)
        modules = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])
        place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        yield Terminal({**place, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "PYTHONPATH": modules}), hub


def test_a_thinking_model_by_name_collects_trains_on_continues_and_is_published(
    terminal: tuple[Terminal, Hub], tmp_path: Path
) -> None:
    user, hub = terminal
    settings = names(tmp_path, hub)
    questions = {
        prompt_id_of(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]): row["prompt"][0]["content"]
        for file in ("train", "heldout")
        for row in pq.read_table(tmp_path / f"{file}.parquet").to_pylist()
    }
    commit = hub.branches["models/org/qwen3"]["main"]
    reader = Reader(tmp_path / "qwen3")
    longest = max(len(reader.prompt(question)) for question in questions.values())
    assert f"22 questions from 22 rows (longest prompt {longest} tokens)" in user.run("plan", *words(settings))
    checked = user.run("check", *words(settings), ends=None)
    assert f"ok      model: org/qwen3 of the hub, commit {commit}" in checked
    assert "hf:org/words/default:train@" in checked
    assert "16 questions, 3 of 4 prompts a step, an epoch of 5 steps" in checked
    assert "special tokens of the tokenizer: <think>, </think>; verifier and reward function see them" in checked

    collected = user.run("collect", *words(settings, run__directory=f'"{tmp_path / "collect"}"'))
    count = check_records(tmp_path / "pool", tmp_path / "qwen3", questions)
    assert f"pool pool: {count} responses to 22 of 22 questions" in collected
    user.run("pool", "push", "org/pool", "--embedded", tmp_path / "pool")
    user.run("pool", "pull", "org/pool", "--embedded", tmp_path / "pulled")
    assert check_records(tmp_path / "pulled", tmp_path / "qwen3", questions) == count

    replays = {"replay.count": "1", "replay.minimum": "1", "pool.directory": f'"{tmp_path / "pulled"}"'}
    settings, thinking = settings | replays, "{ enable_thinking = true }"
    other = user.refused(settings, ends=1, model__template=thinking)
    assert f"responses looked at answer prompts made by template {digest_of(tmp_path / 'qwen3')}" in other
    assert not (tmp_path / "run").exists()
    user.run("train", *words(settings, run__steps="2"))
    user.run("train", *words(settings, run__steps="3"), HF_HUB_OFFLINE="1")
    steps = [*read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert [(line["step"], line["metrics"]["replay/trajectories"]) for line in steps] == [(0, 4), (1, 4), (2, 4)]
    assert "model.template" in user.refused(settings, run__steps="4", model__template=thinking)
    hub.push("models/org/qwen3", {"config.json": b"{}", "model.safetensors": b"other"})
    assert f'model.revision  in the directory: "{commit}"' in user.refused(settings, run__steps="4")

    user.run("push", tmp_path / "run", "org/mine")
    head = hub.branches["models/org/mine"]["main"]
    published = hub.commits["models/org/mine"][head]
    assert f"* base model: org/qwen3, commit `{commit}`" in published["README.md"].decode()
    assert "model.template.enable_thinking = false" in published["README.md"].decode()
    out = tmp_path / "evaluated"
    user.run("evaluate", "org/mine", "hf:org/more:test", "--config", BASE, *words(settings)[1:], "--out", out)
    evaluated = json.loads((out / "evaluation.json").read_text())
    assert evaluated["model"] == f"org/mine of the hub, commit {head}"
    assert [(row["data_source"], row["questions"]) for row in evaluated["rows"]] == [("quickstart", 6)]
    check_said(published, tmp_path / "mine", pq.read_table(out / "samples.parquet").to_pylist())
    assert [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
