"""Episodes in TRL's own ``GRPOTrainer``: a template that writes tool calls, and a model whose turns are written down."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlep.config.schema import ModelConfig
from rlep.core.types import BoolArray, Int32Array, prompt_id_of
from rlep.engines.tokenizer import Tokenizer
from rlep.environments.calculator import Calculator
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rule import replay_rule
from rlep.services.environment.contract import load_contract
from rlep.services.environment.digest import environment_digest
from tests.services.integrations.trl_scene import MODEL, correct, questions, settings, tokenizer

from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # isort: skip
from trl import GRPOTrainer  # isort: skip - after the scene has hidden vLLM from it

CALCULATOR = "rlep.environments.calculator:Calculator"
TEMPLATE = (
    "{% for message in messages %}{% for call in message.tool_calls or [] %}={{ call.function | tojson }}{% endfor %}"
    "{{ message.content }}{% if message.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<sep>{% endif %}"
)


class Counted(Calculator):
    """The calculator with a reward: 1 where it was asked."""

    asked = 0
    """Calls of ``get_reward``, of all environments."""
    used = 0
    """Calls of the tool, of all environments."""

    def reset(self, **row: object) -> None:
        """Begin an episode."""
        self._used = False

    def evaluate(self, expression: str) -> str:
        """Compute an expression.

        Args:
            expression: Of numbers.
        """
        type(self).used += 1
        self._used = True
        return super().evaluate(expression)

    def get_reward(self) -> float:
        """Return 1 where the tool was used."""
        type(self).asked += 1
        return float(self._used)


def talking() -> PreTrainedTokenizerFast:
    """The quickstart's tokenizer with tools: a turn that begins with = calls ``evaluate``, by whose schema it is read."""
    made = tokenizer()
    made.chat_template = TEMPLATE

    def parse(response: list[int], tools: Any = None, **_: object) -> dict[str, Any]:
        text = made.decode(response, skip_special_tokens=True)
        if not text.startswith("="):
            return {"role": "assistant", "content": text}
        function = {"name": "evaluate", "arguments": {"expression": text[1:] if tools else None}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}

    made.response_template, made.parse_response = {"fields": {}}, parse
    return made


def ids(text: str) -> list[int]:
    """Tokens of a text."""
    return list(tokenizer().encode(text, add_special_tokens=False))


@dataclass(frozen=True)
class Played:
    """The episode of a question: a call, what the tool answers, and the answer."""

    prompt_id: str
    tokens: Int32Array
    sampled: BoolArray


def episode(at: int, *, reference: bool = False) -> Played:
    """The right one of question ``at``."""
    row = questions(at + 1)[at]
    call, answer = ids(f"={expression(at)}<eos>"), row["answer"]
    told, said = ids(f"{answer}<sep>"), ids(f"{answer}<eos>")
    mask = [True] * len(call) + [False] * len(told) + [True] * len(said)
    named = prompt_id_of(row["prompt"][0]["content"], answer if reference else "")
    return Played(named, np.array(call + told + said, np.int32), np.array(mask))


def expression(at: int) -> str:
    """What question ``at`` asks for: see ``questions``."""
    return f"{2 + at % 7}*{3 + at // 7}+{at % 5 + 1}"


@dataclass
class Script:
    """In the place of a model: to each question a call of the tool, then its answer; the other responses are wrong."""

    episodes: tuple[int, ...] = (0,)
    """Those of a question's responses that are episodes."""
    calls: list[int] = field(default_factory=list)
    """Prompts of each call."""
    logprob: float | None = None
    """Of each token; None: not known."""

    def __call__(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[Any, Any]:
        """``GRPOTrainer._generate_single_turn``."""
        self.calls.append(len(prompt_ids))
        seen: Counter[str] = Counter()
        said = []
        for prompt in prompt_ids:
            question, *rest = tokenizer().decode(prompt).split("<sep>")
            if len(rest) > 1:
                said.append(ids(rest[0].rpartition("<eos>")[2] + "<eos>"))
                continue
            known = {row["prompt"][0]["content"]: at for at, row in enumerate(questions(16))}
            called = f"={expression(known[question])}<eos>"
            said.append(ids(called if seen[question] in self.episodes else "1<eos>"))
            seen[question] += 1
        logprobs = None if self.logprob is None else [[self.logprob] * len(turn) for turn in said]
        return said, logprobs


def episodes_of(output: Path, script: Script, rewards: Any = correct, *, prompts: int = 2, **given: Any) -> GRPOTrainer:
    """A trainer whose responses are episodes with the calculator, two prompts of four responses a step."""
    hooks = {name: given.pop(name) for name in ("rollout_func", "tools") if name in given}
    environment = given.pop("environment_factory", None if "tools" in hooks else Calculator)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=rewards,
        args=settings(output, **{"max_steps": 1, "steps_per_generation": 1} | given),
        train_dataset=questions(prompts),
        processing_class=talking(),
        environment_factory=environment,
        **hooks,
    )
    trainer._generate_single_turn = script
    return trainer


def of_rlep(run: str, **given: Any) -> Origin:
    """A run of rlep with ``environment.factory`` of the calculator, as its records name it."""
    mine = Tokenizer(talking(), ModelConfig()).with_tools(load_contract(CALCULATOR).schemas)
    named = environment_digest(CALCULATOR)
    return Origin(run, mine.digest, mine.template_digest, **{"environment_digest": named} | given)


def fill(pool: Any, run: Origin, *, reference: bool = False, reward: float = 1.0) -> None:
    """Store the episodes of two questions."""
    teacher = Replayer(pool, run, replay_rule(1))
    stored = [episode(at, reference=reference) for at in range(2)]
    teacher.draw(0, [one.prompt_id for one in stored])
    logprobs = [np.where(one.sampled, -0.25, 0).astype(np.float32) for one in stored]
    rows = [
        Row(one.prompt_id, one.tokens, reward, True, known, one.sampled)
        for one, known in zip(stored, logprobs, strict=True)
    ]
    teacher.keep(0, rows)
    assert teacher.take_counts().stored == len(rows)
