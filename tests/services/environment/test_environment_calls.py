"""Turns of an episode: what a policy may write wrongly and a tool may do wrongly is text for the policy, and it goes on."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest

from rlep.core.episodes import Observation, ToolCall
from rlep.services.environment.local import MOST_CALLS, LocalEnvironments
from tests.services.environment.conftest import Make


def call(name: str, /, **arguments: Any) -> list[ToolCall]:
    return [ToolCall(name, json.dumps(arguments))]


async def texts(environments: LocalEnvironments, *calls: ToolCall, episode: str = "e") -> tuple[str, ...]:
    found = await environments.act(episode, calls)
    assert found.status == "open", found
    return found.texts


async def test_calls_are_answered_in_their_order_and_bad_ones_are_named_to_the_policy(make: Make) -> None:
    rough = await make("Rough", observation_tokens=64)
    assert await rough.begin("e", '{"greeting": "hello", "x": 1}', seed=0) == Observation(("hello",))
    signature = "echo(text: str, times: int = 1, mode: Literal['plain', 'loud'] = 'plain')"
    found = await texts(
        rough,
        *call("echo", text="ab", times=2),
        *call("shout"),
        *call("echo", txt="ab"),
        *call("echo", text=3, times="2", mode="soft"),
        ToolCall("echo", '{"text": "a"'),
        ToolCall("echo", '["a"]'),
        *call("fail", text="no\n such   door"),
        *call("fail", text=""),
    )
    assert found[:4] == (
        "abab",
        "error: there is no tool shout; there are draw, echo, fail, give, misbehave, print_much",
        f"error: the argument text is missing; there is no argument txt. It is {signature}",
        "error: text: input should be a valid string; times: input should be a valid integer; "
        f"mode: input should be 'plain' or 'loud'. It is {signature}",
    )
    assert found[4].startswith(f"error: the arguments of {signature} are no JSON object: Expecting")
    assert found[5:] == (
        f"error: the arguments of {signature} are no JSON object",
        "error: no such door",
        "error: ValueError",
    )
    assert await rough.end("e") is None  # a verifier grades it


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("none", "None"),
        ("number", "4.5"),
        ("dict", "{'a': [1]}"),
        ("list", "[1, 2]"),
        ("parts", "two parts"),
        ("surrogate", "?"),
    ],
)
async def test_a_result_that_is_no_text_becomes_one(make: Make, kind: str, text: str) -> None:
    rough = await make("Rough")
    await rough.begin("e", "", seed=0)
    assert await texts(rough, *call("give", kind=kind)) == (text,)


async def test_megabytes_are_cut_and_prints_go_nowhere(make: Make) -> None:
    rough = await make("Rough", observation_tokens=64)
    await rough.begin("e", "", seed=0)
    found = await texts(rough, *call("echo", text="x", times=3_000_000), *call("print_much"))
    assert found == (f"{'x' * 1024}\n[cut: 1024 of 3000000 characters]", "printed")
    (cut,) = await texts(rough, *call("fail", text="y" * 3000))
    assert cut == f"error: {'y' * 1017}\n[cut: 1024 of 2000 characters]"


async def test_more_calls_in_a_turn_than_are_carried_out_are_told_so(make: Make) -> None:
    rough = await make("Rough")
    await rough.begin("e", "", seed=0)
    found = await texts(rough, *call("echo", text="a") * (MOST_CALLS + 2))
    assert found == ("a",) * MOST_CALLS + ("error: at most 16 calls in a turn are carried out",) * 2
    assert await texts(rough) == ()


async def test_a_game_answers_texts_until_it_ends_and_its_reward_is_scaled(make: Make) -> None:
    game = await make("Rewarded")
    assert await game.begin("e", '{"reward": 0.5}', seed=0) == Observation()
    assert await game.act("e", "left") == Observation(("you said left",))
    assert await game.act("e", "end") == Observation((), "ended")
    verdict = await game.end("e")
    assert verdict is not None
    assert (verdict.status, verdict.score, verdict.reason) == ("wrong", 0.75, "")  # 0.5 of [-1, 1]
    assert (verdict.verifier, verdict.version) == ("environment:rough_environments:Rewarded", game.digest)
    assert await game.end("e") is None
    await game.begin("e", '{"reward": 1}', seed=0)
    won = await game.end("e")
    assert won is not None
    assert (won.status, won.score) == ("correct", 1.0)


async def test_async_tools_are_awaited_and_one_that_waits_too_long_ends_its_episode_alone(make: Make) -> None:
    waiting = await make("Waiting", cpu_seconds=0.5, deadline_s=1)
    assert await waiting.begin("a", "", seed=0) == Observation(("ready",))
    await waiting.begin("b", "", seed=0)
    processes = {*psutil.Process().children(recursive=True)}
    assert await texts(waiting, *call("wait", seconds=0.01), episode="a") == ("waited 0.01",)
    late = await waiting.act("a", call("wait", seconds=100))
    assert late == Observation((), "timeout", "it took more than 1 s")
    assert await texts(waiting, *call("wait", seconds=0), episode="b") == ("waited 0",)
    await waiting.begin("a", "", seed=0)
    assert await waiting.act("a", call("refuse")) == late
    assert await texts(waiting, *call("wait", seconds=0), episode="b") == ("waited 0",)
    assert {*psutil.Process().children(recursive=True)} == processes


async def test_columns_and_arguments_have_any_name(make: Make) -> None:
    web = await make("Web")
    assert await web.begin("e", '{"method": 1, "name": 2, "found": 3}', seed=0) == Observation(("method, name, found",))
    assert await texts(web, *call("request", method="GET", call="/", name="x")) == ("GET / x",)
    (said,) = await texts(web, *call("request", method="\ud800", call="/", name="x"))
    assert said.startswith("error: invalid JSON: ")


async def test_an_episode_draws_the_same_whoever_its_neighbours_are(make: Make) -> None:
    rough = await make("Rough")

    async def play(*names: str) -> dict[str, list[str]]:
        drawn: dict[str, list[str]] = {name: [] for name in names}
        for number, name in enumerate(names):
            await rough.begin(name, "", seed=number)
        for _ in range(3):
            for name in reversed(names):
                drawn[name] += await texts(rough, *call("draw"), episode=name)
        for name in names:
            await rough.end(name)
        return drawn

    alone, crowded = await play("a"), await play("a", "b", "c")
    assert alone["a"] == crowded["a"]
    assert len({text for drawn in crowded.values() for text in drawn}) == 9


async def test_episodes_that_nobody_ends_are_forgotten(make: Make) -> None:
    rough = await make("Rough", idle_s=0)
    for number in range(5):
        await rough.begin(f"e{number}", "", seed=0)
    gone, *others = [await rough.act(f"e{number}", call("draw")) for number in range(5)]
    assert (gone.status, gone.reason[:23]) == ("crashed", "there is no episode e0:")
    # At least the last one is there, and one before it whose last call was in the same moment.
    assert 1 <= sum(one.status == "open" for one in others) <= 2
    await rough.begin("e4", "", seed=0)
    assert await texts(rough, *call("echo", text="again"), episode="e4") == ("again",)


@pytest.mark.parametrize("count", [1, 3])
async def test_an_episode_stays_in_its_process(make: Make, count: int) -> None:
    rough = await make("Rough", workers=count)
    for number in range(6):
        await rough.begin(str(number), "", seed=0)
    first = [await texts(rough, *call("misbehave", how="worker"), episode=str(number)) for number in range(6)]
    again = [await texts(rough, *call("misbehave", how="worker"), episode=str(number)) for number in range(6)]
    assert first == again
    assert len(set(first)) == count
