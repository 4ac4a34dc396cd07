"""Games played in real environment processes by a policy that reads its own conversation, through a real tokenizer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from rlep.check.data_checks import environment
from rlep.check.environment_starts import told_texts, tools_of
from rlep.check.inputs import Subject
from rlep.check.prompts_shown import prompt_notes
from rlep.config.environment import EnvironmentConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, DataError, ModelError
from rlep.core.types import Completion, Reissued, Request, Sampling
from rlep.driver.rollout import requests_for
from rlep.driver.wings.episodes import EpisodeGenerators
from rlep.engines.dialogue import Dialogue
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.services.environment.digest import environment_digest
from rlep.services.environment.local import LocalEnvironments
from tests.engines.test_dialogue import QWEN, WITH_TOOLS
from tests.engines.test_thinking_tokens import CHATML, write

FORGETS = CHATML.replace("m.content", "m.content[:40] if loop.last else m.content[:6]")
GUESS, CALCULATOR = "rlep.environments.guess_number:GuessNumber", "rlep.environments.calculator:Calculator"


@dataclass(eq=False)
class Reader:
    """A policy that reads the conversation so far as text, and answers by a rule. A byte is a token."""

    tokenizer: Tokenizer
    rule: str
    seen: list[str] = field(default_factory=list)
    reissued: Reissued = Reissued()  # noqa: RUF009 - frozen

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        for request in requests:
            text = self.tokenizer.backend.decode(request.tokens.tolist(), skip_special_tokens=False)
            self.seen.append(text)
            said = self.halve(text) if self.rule == "halve" else self.calculate(text)
            tokens = np.asarray(self.tokenizer.encode_text(f"{said}<|im_end|>"), dtype=np.int32)
            logprobs = np.full(len(tokens), -0.5, dtype=np.float32)
            yield Completion(request.id, request.prompt_id, request.sample, tokens, logprobs, "stop", 0, said)

    def halve(self, text: str) -> str:
        """Guess the middle of what is left."""
        low, high = 1, int(re.findall(r"from 1 to (\d+)", text)[-1])
        for guess, hint in re.findall(r"assistant\n(\d+)<\|im_end\|>\n<\|im_start\|>user\n(Higher|Lower)", text):
            low, high = (int(guess) + 1, high) if hint == "Higher" else (low, int(guess) - 1)
        return str((low + high) // 2)

    def calculate(self, text: str) -> str:
        """Ask the tool, once wrongly, and answer with what it says last."""
        found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text)
        if not found:
            calls = ["{'name'}", json.dumps({"name": "evaluate", "arguments": {"expression": "17 * 23"}})]
            return "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        return rf"\boxed{{{found[-1]}}}"


def config_of(directory: Path, factory: str, template: str, *more: str) -> Config:
    """A config of two questions."""
    write(directory / "model", template, special=False, turns=True)
    rows = [{"question": "Play. ", "answer": "1", "highest": 60}, {"question": "Play well. ", "answer": "1"}]
    (directory / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_config(
        [],
        [
            f'model.path="{directory / "model"}"',
            f'data.train="{directory / "data.jsonl"}"',
            "data.max_prompt_tokens=900",
            "rollout.max_tokens=400",
            "reward.overlong_buffer=0",
            f'environment.factory="{factory}"',
            "environment.observation_tokens=100",
            *more,
        ],
    )


async def played(
    config: Config, subject: Subject, tokenizer: Tokenizer, rule: str, samples: int
) -> tuple[list[Completion], Reader]:
    """Every sample of every training question."""
    assert subject.train is not None
    prompts, policy = subject.train.prompts, Reader(tokenizer, rule)
    environments = LocalEnvironments(config.environment, idle_s=600)
    asked = {prompt.id: prompt for prompt in prompts}
    dialogue = Dialogue(tokenizer, observation_tokens=config.environment.observation_tokens)
    await environments.start()
    try:
        episodes = EpisodeGenerators(policy, environments, dialogue, prompts=asked, turns=config.environment.turns)
        requests = requests_for(prompts, samples, label="train/0", seed=1, address=("rollout", 0))
        sampling = Sampling(max_tokens=config.rollout.max_tokens)
        async with aclosing(episodes.generate(requests, sampling, deadline_s=120)) as stream:  # type: ignore[type-var]
            done = {completion.request_id: completion async for completion in stream}
    finally:
        environments.close()
    return [done[request.id] for request in requests], policy


def test_a_question_is_told_how_its_game_begins(tmp_path: Path) -> None:
    config = config_of(tmp_path, GUESS, CHATML)
    train = Subject(config).train
    assert train is not None
    told = ["I think of a whole number from 1 to 60.", "I think of a whole number from 1 to 100."]
    for prompt, question, text in zip(train.prompts, ("Play. ", "Play well. "), told, strict=True):
        assert prompt.question == question + prompt.told
        assert prompt.told.startswith(text)
        assert json.loads(prompt.columns)["answer"] == "1"
    plain = config.model_copy(update={"environment": EnvironmentConfig()})
    untold = Subject(plain).train
    assert untold is not None
    assert [one.id for one in untold.prompts] == [one.id for one in train.prompts], "ids are of the data's questions"
    assert untold.digest != train.digest
    assert environment_digest(plain.environment.factory) == ""
    assert environment_digest(config.environment.factory).startswith(f"{GUESS}:")


def test_halving_finds_every_number_and_each_sample_has_the_same_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, GUESS, CHATML)
    tokenizer = load_tokenizer(tmp_path / "model", config.model)
    subject = Subject(config)
    assert subject.train is not None
    done, policy = asyncio.run(played(config, subject, tokenizer, "halve", 3))
    assert [one.verdict.status if one.verdict else None for one in done] == ["correct"] * 6
    assert len({one.tokens.tobytes() for one in done[:3]}) == len({one.tokens.tobytes() for one in done[3:]}) == 1
    longest = max(policy.seen, key=len)
    assert re.search(r"assistant\n\d+<\|im_end\|>\n<\|im_start\|>user\n(Higher|Lower)\.<\|im_end\|>\n", longest)


def test_a_calculators_answer_is_used_and_a_bad_call_is_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, CALCULATOR, QWEN)
    subject = Subject(config)
    assert subject.train is not None
    assert [tool["function"]["name"] for tool in subject.tokenizer.tools] == ["evaluate"]  # type: ignore[index]
    done, policy = asyncio.run(played(config, subject, subject.tokenizer, "calculate", 1))
    assert [(one.verdict, one.text) for one in done] == [(None, r"\boxed{391}")] * 2
    assert "error: the call of a tool cannot be read: it is no JSON" in policy.seen[-1]
    assert prompt_notes(subject.tokenizer, (), None) == [
        "the model is told of no tools: its chat template does not write them, so that the questions have to name evaluate"
    ]


def test_a_check_says_how_its_policy_acts(tmp_path: Path) -> None:
    for name, factory, template, acts in (
        ("game", GUESS, CHATML, "step: at most 8 turns"),
        ("tool", CALCULATOR, QWEN, "tools evaluate: at most 8 turns"),
    ):
        subject = Subject(config_of(tmp_path / name, factory, template))
        assert [(one.level, one.detail) for one in environment(subject)] == [("ok", f"{factory} with {acts}")]
    assert not list(environment(Subject(Config())))
    with pytest.raises(ModelError, match="writes turn 1 of an episode otherwise"):
        list(environment(Subject(config_of(tmp_path / "forgets", GUESS, FORGETS))))


def test_tools_are_written_by_a_template_that_knows_of_them(tmp_path: Path) -> None:
    subject = Subject(config_of(tmp_path, CALCULATOR, WITH_TOOLS))
    assert prompt_notes(subject.tokenizer, (), None) == []
    assert subject.tokenizer.template_digest != load_tokenizer(tmp_path / "model").template_digest


def test_a_factory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no module nowhere here or on the path"):
        tools_of(EnvironmentConfig(factory="nowhere:Game"))


def test_a_reset_that_fails_names_its_rows(tmp_path: Path) -> None:
    config = config_of(tmp_path, GUESS, CHATML)
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "Play.", "answer": "1", "highest": "many"}) + "\n")
    with pytest.raises(DataError, match=r"reset fails for 1 of 1 question\n  line 1: crashed: TypeError: "):
        _ = Subject(config).train
    assert told_texts(config.environment, []) == []


def test_one_question_with_two_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text(json.dumps({"question": "Play. ", "answer": "1", "highest": 61}) + "\n")
    config = config_of(tmp_path, GUESS, CHATML, f'data.evaluation=["{tmp_path / "other.jsonl"}"]')
    subject = Subject(config)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"'Play\. .*' is in data\.evaluation and, with other values of highest"):
        subject.inputs()
