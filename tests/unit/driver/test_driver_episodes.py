"""Episodes on fakes: what a turn is asked with, how an episode ends, what its completion says, and that none is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import numpy as np
import pytest

from rlep.core.episodes import Action, Observation, ToolCall, reset_seed
from rlep.core.errors import ActorLost, DeadlineExceeded
from rlep.core.seeds import seed_for
from rlep.core.types import Completion, Sampling, Verdict
from rlep.driver.wings.episodes import DRIFTED, EpisodeVerifiers
from tests.unit.driver.driver_fakes import FakeVerifiers, World
from tests.unit.driver.driver_values import prompts_of
from tests.unit.driver.episode_scene import (
    BAD,
    CALL,
    OPEN,
    PROMPT,
    FakeEnvironments,
    Talker,
    episodes_of,
    play,
    request_of,
)


def same(left: Completion, right: Completion) -> bool:
    """Equal in every field, arrays to the bit."""
    pairs = [(getattr(left, one.name), getattr(right, one.name)) for one in fields(Completion)]
    return all(a.tobytes() == b.tobytes() if isinstance(a, np.ndarray) else a == b for a, b in pairs)


async def test_an_episode_of_one_turn_is_the_response_itself() -> None:
    talker, environments, request = Talker([[3, 1]]), FakeEnvironments(), request_of()
    (whole,) = await play(episodes_of(talker, environments), [request])
    assert same(whole, talker.answer(request, Sampling(max_tokens=40)))
    assert whole.sampled is None
    assert [one.episode for one in talker.asked[0]] == [request.id]
    assert same_request(talker.asked[0][0], request)
    assert [what for what, _ in environments.events] == ["begin", "end"], "no call: it is not asked to act"


def same_request(left: object, right: object) -> bool:
    names = ("id", "prompt_id", "tokens", "sample", "seed", "given")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


async def test_turns_and_observations_are_one_response() -> None:
    talker, environments = Talker([[CALL, 1], [4, CALL, 1], [5, 6, 1]]), FakeEnvironments()
    (whole,) = await play(episodes_of(talker, environments), [request_of()])
    assert whole.tokens.tolist() == [CALL, 1, 50, 2, 51, 4, CALL, 1, 50, 2, 51, 5, 6, 1]
    assert whole.sampled is not None
    assert whole.sampled.tolist() == [True] * 2 + [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert whole.logprobs.tolist() == [-0.5] * 2 + [0.0] * 3 + [-0.5] * 3 + [0.0] * 3 + [-0.5] * 3
    assert [str(one.dtype) for one in (whole.tokens, whole.logprobs, whole.sampled)] == ["int32", "float32", "bool"]
    assert (whole.finish_reason, whole.text, whole.verdict, whole.token_versions) == ("stop", "turn 3", None, None)
    assert (whole.request_id, whole.prompt_id, whole.sample) == (request_of().id, PROMPT.id, 0)
    add = ToolCall("add", "{}")
    assert environments.acted == [[add], [add]]


async def test_a_later_turn_is_asked_with_all_before_it() -> None:
    talker = Talker([[CALL, 1], [CALL, 1], [1]])
    await play(episodes_of(talker, FakeEnvironments()), [request_of(2)])
    first, second, third = (asked[0] for asked in talker.asked)
    name = f"train/0/{PROMPT.id}/2"
    assert [one.id for one in (first, second, third)] == [name, f"{name}/t2", f"{name}/t3"]
    assert [one.seed for one in (first, second, third)] == [42, seed_for(42, "turn", 2), seed_for(42, "turn", 3)]
    assert [one.given for one in (first, second, third)] == [0, 5, 10]
    assert {one.episode for one in (first, second, third)} == {name}
    assert third.tokens.tolist() == [900, 950, CALL, 1, 50, 2, 51, CALL, 1, 50, 2, 51]
    assert third.tokens.dtype == np.int32


async def test_an_environment_begins_with_its_row_and_the_prompts_seed() -> None:
    environments = FakeEnvironments()
    await play(episodes_of(Talker([[1]]), environments), [request_of(0), request_of(1)])
    begun = sorted(detail for what, detail in environments.events if what == "begin")
    seed = reset_seed(PROMPT.id)
    assert begun == [f'train/0/{PROMPT.id}/{sample} {{"answer": 2}} {seed}' for sample in (0, 1)]
    assert seed == seed_for(0, "environment", PROMPT.id)


@pytest.mark.parametrize(
    ("turns", "environments", "most", "tokens", "reason", "acts"),
    [
        ([[3, 1]] * 9, FakeEnvironments([OPEN, Observation(status="ended")], tools=()), 40, 2 + 3 + 2, "stop", 2),
        ([[CALL, 1]] * 9, FakeEnvironments(), 40, 3 * 2 + 2 * 3, "stop", 3),  # three turns: the last is carried out
        ([[CALL, 1], [CALL, -1]], FakeEnvironments(), 6, 2 + 3 + 1, "length", 1),  # a turn that was cut calls nothing
        ([[CALL, 1]] * 9, FakeEnvironments(), 5, 2, "length", 1),  # 2 + 3 leave no room for a turn
        ([[CALL, 1], [1]], FakeEnvironments(), 6, 2 + 3 + 1, "stop", 1),  # and here for one token
        ([[CALL, -1]], FakeEnvironments(), 1, 1, "length", 0),
        ([[CALL, 1]], FakeEnvironments([Observation(("ok",), "ended")]), 40, 2, "stop", 1),
    ],
)
async def test_ends_of_an_episode(
    turns: list[list[int]], environments: FakeEnvironments, most: int, tokens: int, reason: str, acts: int
) -> None:
    (whole,) = await play(episodes_of(Talker(turns), environments, turns=3), [request_of()], max_tokens=most)
    assert (len(whole.tokens), whole.finish_reason) == (tokens, reason)
    assert whole.sampled is None or whole.sampled[-1]
    assert sum(what == "act" for what, _ in environments.events) == acts
    assert environments.open == {}


async def test_what_its_environment_says_of_an_episode_is_its_verdict() -> None:
    verdict = Verdict("correct", "58", "environment:game:Game", "abcd", score=0.75)
    (whole,) = await play(episodes_of(Talker([[3, 1]]), FakeEnvironments(verdict=verdict)), [request_of()])
    assert whole.verdict is verdict


@pytest.mark.parametrize("status", ["crashed", "timeout", "out_of_memory"])
@pytest.mark.parametrize("when", ["begin", "act"])
async def test_a_failure_of_the_environment_ends_the_episode_and_is_never_wrong(status: str, when: str) -> None:
    failed = Observation(status=status, reason="boom")  # type: ignore[arg-type]
    answers = {"begins": failed} if when == "begin" else {"answers": [failed]}
    environments = FakeEnvironments(**answers)  # type: ignore[arg-type]
    episodes = episodes_of(Talker([[CALL, 1]]), environments)
    (whole,) = await play(episodes, [request_of()])
    assert whole.verdict == Verdict(status, None, "environment", "", reason="boom")  # type: ignore[arg-type]
    assert whole.tokens.tolist() == [CALL, 1]
    assert environments.open == {}
    assert episodes.metrics()["episode/failed"] == 1


async def test_the_environments_own_verdict_of_its_failure_stays() -> None:
    own = Verdict("timeout", None, "environment:game:Game", "abcd", reason="it took more than 1 s")
    environments = FakeEnvironments([Observation(status="timeout", reason="slow")], verdict=own)
    (whole,) = await play(episodes_of(Talker([[CALL, 1]]), environments), [request_of()])
    assert whole.verdict is own


async def test_an_environment_that_begins_otherwise_than_the_prompt_says_fails() -> None:
    environments = FakeEnvironments(begins=Observation(("Guess from 1 to 9.",)))
    told = episodes_of(Talker([[1]]), environments, text="Guess from 1 to 9.")
    (whole,) = await play(told, [request_of()])
    assert whole.verdict is None
    (whole,) = await play(episodes_of(Talker([[1]]), environments, text="Guess from 1 to 8."), [request_of()])
    assert whole.verdict is not None
    assert (whole.verdict.status, whole.verdict.reason) == ("crashed", DRIFTED)


async def test_a_call_that_cannot_be_read_is_told_and_the_others_are_carried_out() -> None:
    environments = FakeEnvironments([Observation(("5", "error: no"))])
    episodes = episodes_of(Talker([[CALL, BAD, CALL, 1], [1]]), environments)
    (whole,) = await play(episodes, [request_of()])
    assert whole.tokens.tolist() == [CALL, BAD, CALL, 1, 50, 1, 9, 9, 51, 1]  # "5", "error: no JSON", "error: no"
    assert [len(action) for action in environments.acted] == [2]
    assert episodes.metrics()["episode/tool_errors"] == 2
    environments = FakeEnvironments()
    await play(episodes_of(Talker([[BAD, 1], [1]]), environments), [request_of()])
    assert environments.acted == [], "nothing to carry out"


async def test_first_turns_go_out_in_order_and_later_ones_as_they_are_ready() -> None:
    talker = Talker([[CALL, 1], [1]])
    requests = [request_of(sample, prompt=prompt) for prompt in prompts_of(4) for sample in range(3)]
    await play(episodes_of(talker, FakeEnvironments()), requests)
    assert [one.id for one in talker.asked[0]] == [one.id for one in requests]
    assert sorted(one.id for asked in talker.asked[1:] for one in asked) == sorted(f"{one.id}/t2" for one in requests)


async def test_the_order_of_arrival_changes_nothing() -> None:
    requests = [request_of(sample) for sample in range(5)]
    ways = [Talker([[CALL, 1], [CALL, 4, 1], [1]], backwards=backwards) for backwards in (False, True)]
    one, other = [await play(episodes_of(talker, FakeEnvironments()), requests) for talker in ways]
    assert all(same(a, b) for a, b in zip(one, other, strict=True))


async def test_an_episode_has_the_oldest_version_of_its_turns() -> None:
    talker = Talker([[CALL, 1], [CALL, 1], [1]], versions=(4, 5, 5))
    (whole,) = await play(episodes_of(talker, FakeEnvironments()), [request_of()])
    assert whole.policy_version == 4
    assert whole.token_versions is not None
    assert whole.token_versions.tolist() == [4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5]
    talker = Talker([[CALL, 1], [1]], versions=(4, 5), whole=False)
    (whole,) = await play(episodes_of(talker, FakeEnvironments()), [request_of()])
    assert whole.policy_version == 3
    assert whole.token_versions is not None
    assert whole.token_versions.tolist() == [3, 4, 4, 4, 4, 4]
    assert whole.token_versions.dtype == np.int32


async def test_a_late_call_says_what_is_missing_and_ends_every_environment() -> None:
    requests = [request_of(sample) for sample in range(4)]
    talker = Talker([[CALL, 1], [1]], hold=lambda request: request.id.endswith(("1/t2",)))
    environments = FakeEnvironments(hold=lambda name: name.endswith(("/2", "/3")))
    episodes = episodes_of(talker, environments)
    with pytest.raises(
        DeadlineExceeded,
        match=f"rollout: 3 of 4 episodes missing after 1 s, first train/0/{PROMPT.id}/1; 1 wait for a generator, 2 for their",
    ):
        await play(episodes, requests, deadline_s=1)
    assert environments.open == {}
    assert talker.closed == len(talker.asked)


async def test_a_call_that_is_given_up_ends_every_environment() -> None:
    environments = FakeEnvironments(hold=lambda name: name.endswith("/1"))
    talker = Talker([[CALL, 1], [1]])
    stream = episodes_of(talker, environments).generate(
        [request_of(0), request_of(1)], Sampling(max_tokens=40), deadline_s=60
    )
    async for completion in stream:
        assert completion.sample == 0
        break
    assert list(environments.open) == [request_of(1).id]
    await stream.aclose()  # type: ignore[attr-defined]
    assert environments.open == {}
    assert talker.closed == len(talker.asked)


async def test_an_error_of_the_generators_ends_all() -> None:
    class Breaks(Talker):
        def answer(self, request, sampling):  # type: ignore[no-untyped-def]
            if request.id.endswith("/t2"):
                raise ActorLost("no generator is left")
            return super().answer(request, sampling)

    environments = FakeEnvironments()
    with pytest.raises(ActorLost, match="no generator is left"):
        await play(episodes_of(Breaks([[CALL, 1]]), environments), [request_of(sample) for sample in range(3)])
    assert environments.open == {}


async def test_an_environment_that_cannot_be_ended_holds_nobody_up() -> None:
    class Gone(FakeEnvironments):
        async def end(self, episode: str) -> Verdict | None:
            await super().end(episode)
            raise ActorLost("no environment is left")

    environments = Gone(hold=lambda _: True)
    with pytest.raises(DeadlineExceeded, match="0 wait for a generator, 1 for their environment"):
        await play(episodes_of(Talker([[CALL, 1]]), environments), [request_of()], deadline_s=1)


async def test_metrics_are_of_the_training_episodes_since_the_last_time() -> None:
    environments = FakeEnvironments([Observation(("a long answer",)), Observation(("error: no",)), OPEN])
    episodes = episodes_of(Talker([[CALL, 1], [CALL, 1], [1]]), environments)
    assert episodes.metrics() == {}
    await play(episodes, [request_of(0), request_of(1)])
    await play(episodes, [request_of(0, label="evaluate")])
    assert episodes.metrics() == {
        "episode/turns": 3.0,
        "episode/observation_tokens": 6.0,
        "episode/cut": 2,
        "episode/tool_errors": 2,
        "episode/failed": 0,
    }
    assert episodes.metrics() == {}


async def test_only_what_no_environment_judged_is_graded() -> None:
    talker, judged = Talker([[1]]), Verdict("wrong", None, "environment:game:Game", "abcd")
    plain = talker.answer(request_of(), Sampling())
    completions = [replace(plain, verdict=judged), replace(plain, text="right"), plain]
    verifiers = FakeVerifiers(World())
    verdicts = await EpisodeVerifiers(verifiers).grade(PROMPT, completions)
    assert verdicts[0] is judged
    assert [verdict.status for verdict in verdicts[1:]] == ["correct", "wrong"]
    assert await EpisodeVerifiers(verifiers).grade(PROMPT, completions[:1]) == [judged]
    assert verifiers.world.count("grade") == 1, "nothing to grade: nobody is asked"


async def test_episodes_that_are_ready_together_share_a_call() -> None:
    talker, requests, met = Talker([[CALL, 1], [1]]), [request_of(sample) for sample in range(64)], asyncio.Event()

    class Together(FakeEnvironments):
        async def act(self, episode: str, action: Action) -> Observation:
            if len(self.open) == len(requests):
                met.set()
            await met.wait()
            return await super().act(episode, action)

    await play(episodes_of(talker, Together()), requests)
    assert len(talker.asked) <= 3
