"""The class of an environment: what of it is called, what is refused in one sentence, and the same file in TRL."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils import get_json_schema

from rlep.core.episodes import Observation, ToolCall
from rlep.core.errors import ConfigError, EnvironmentFault
from rlep.environments.calculator import Calculator
from rlep.environments.guess_number import GuessNumber
from rlep.services.environment import link
from tests.services.environment.conftest import Make


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Both", "Both has step and the tools look: a turn is a text for step, or calls of tools"),
        ("Neither", "Neither has neither step nor a public method that could be a tool"),
        ("NoReset", "NoReset has no method reset, which begins an episode"),
        ("Undocumented", "Undocumented.look cannot be a tool: .*has no docstring.*put an underscore before its name"),
        ("Untyped", "Untyped.look cannot be a tool: its argument at has no type"),
        ("Open", r"Open.look cannot be a tool: \*at: 'str' has no name of its own in a call"),
        ("BadRange", r"BadRange.score_range = \(1, 0\) is no range"),
        ("function", "function is a function, not a class"),
        ("Missing", "AttributeError: module 'rough_environments' has no attribute 'Missing'"),
        ("nowhere:Game", "no module nowhere here or on the path"),
    ],
)
async def test_a_class_that_is_no_environment_is_refused_with_its_name(make: Make, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)environment\.factory.*{reason}"):
        await make(name)


async def test_a_file_of_the_working_directory_is_not_taken_for_pythons_own(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "random.py").write_text('raise RuntimeError("a game of chance")')
    (tmp_path / "of_the_users.py").write_text("from rough_environments import Rewarded")
    monkeypatch.chdir(tmp_path)
    game = await make("of_the_users:Rewarded")
    assert await game.begin("e", '{"reward": 1}', seed=0) == Observation()


async def test_a_process_that_always_ends_before_it_serves_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def start(*_: object) -> Any:
        started.append(subprocess.Popen(["true"], stdin=-1, stdout=-1))
        return started[-1]

    monkeypatch.setattr(link, "start_process", start)
    monkeypatch.setattr(link, "end_process", lambda process: process.wait())
    with pytest.raises(EnvironmentFault, match="ended 3 times before they served"):
        await make("Rough")
    for process in started:
        process.stdin.close()
        process.stdout.close()
    assert len(started) == 3


async def test_tools_are_described_as_transformers_does_it(make: Make) -> None:
    calculator = await make("rlep.environments.calculator:Calculator")
    assert list(calculator.tools) == [get_json_schema(Calculator.evaluate)]
    assert (await make("Rewarded")).tools == []


@pytest.mark.filterwarnings("ignore:TRL currently supports vLLM versions")
@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("(17 + 4) * 3 / 2", "63/2 = 31.5"),
        ("2**-2", "1/4 = 0.25"),
        ("0.1 + 0.2", "3/10 = 0.3"),
        ("-7 % 4", "1"),
        ("1 / 0", "error: Fraction(1, 0)"),
        ("9**9**9", "error: 387420489 is no whole power, or one too large"),
        ("__import__('os')", "error: __import__('os') is not arithmetic"),
        ("1" * 201, "error: an expression has at most 200 characters"),
    ],
)
async def test_the_calculator_and_trls_own_loop_say_the_same(make: Make, expression: str, text: str) -> None:
    calculator = await make("rlep.environments.calculator:Calculator")
    await calculator.begin("e", "{}", seed=0)
    arguments = {"expression": expression}
    found = await calculator.act("e", [ToolCall("evaluate", json.dumps(arguments))])
    assert found.texts == (text,)
    assert in_trl(Calculator(), "evaluate", arguments) in (text, str({"error": text.removeprefix("error: ")}))


def in_trl(environment: Any, tool: str, arguments: dict[str, Any]) -> str:
    """Run one call of a tool by TRL's loop, with a model that then says nothing."""
    from trl import GRPOTrainer

    environment.reset(question="x")
    called = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    completions: list[list[dict[str, Any]]] = [[{"role": "assistant", "tool_calls": [called]}]]
    trainer = SimpleNamespace(
        max_tool_calling_iterations=1,
        _sync_tool_dicts=[{tool: getattr(environment, tool)}],
        _async_tool_dicts=[{}],
        _get_tool_suffix_ids=lambda messages: [7] * len(messages),
        _generate_single_turn=lambda *_, **__: ([[]], None),
        environment_factories={None: type(environment)},
        _env_tools={None: [getattr(environment, tool)]},
        _batch_environments=[None],
        _tokenizer=None,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=100)),
        max_completion_length=50,
        use_vllm=False,
        _is_vlm=False,
    )
    mask: Sequence[Sequence[int]]
    mask, completions, *_ = GRPOTrainer._tool_call_loop(
        trainer, [[{"role": "user", "content": "?"}]], [[1]], [[2, 3]], completions, None, None, {}
    )
    assert mask == [[1, 1, 0]]
    return str(completions[0][-1]["content"])


async def test_the_game_is_won_by_halving_and_its_number_is_that_of_its_seed(make: Make) -> None:
    game = await make("rlep.environments.guess_number:GuessNumber")
    numbers = []
    for seed in (5, 5, 6):
        low, high = 1, 1000
        found = await game.begin("e", '{"highest": 1000, "question": "?"}', seed=seed)
        assert "from 1 to 1000" in found.texts[0]
        for _ in range(10):
            guess = (low + high) // 2
            found = await game.act("e", f"Is it 0 or {guess}?")
            if found.status == "ended":
                break
            low, high = (guess + 1, high) if found.texts == ("Higher.",) else (low, guess - 1)
        assert found.status == "ended"
        numbers.append(guess)
        verdict = await game.end("e")
        assert verdict is not None
        assert (verdict.status, verdict.score) == ("correct", 1.0)
    assert numbers[0] == numbers[1] != numbers[2]
    await game.begin("e", "", seed=0)
    assert (await game.act("e", "no idea")).texts == ("Name a number.",)
    lost = await game.end("e")
    assert lost is not None
    assert (lost.status, lost.score) == ("wrong", 0.0)
    assert get_json_schema(GuessNumber.step)["function"]["name"] == "step"  # in TRL it is a tool
    assert (await game.begin("row's", '{"question": "10-60", "number": 44}', seed=0)).texts == ()
    assert [(await game.act("row's", guess)).texts for guess in ("43", "45")] == [("Higher.",), ("Lower.",)]
    assert (await game.act("row's", "44")).status == "ended"
