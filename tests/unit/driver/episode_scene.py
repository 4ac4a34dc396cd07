"""Fakes of episodes: a scripted policy, a dialogue in small numbers, and environments that remember what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np

from rlep.core.episodes import Action, Observation, Suffix, ToolCall
from rlep.core.types import Completion, FinishReason, Int32Array, Prompt, Reissued, Request, Sampling, Verdict
from rlep.driver.wings.episodes import EpisodeGenerators
from tests.unit.driver.driver_values import prompts_of

OPEN = Observation(("ok",))
TOOLS: Sequence[Mapping[str, object]] = ({"type": "function", "function": {"name": "add"}},)
CALL, BAD = 7, 8
"""A turn's token that calls ``add``, and one that calls what cannot be read."""
BEFORE, AFTER = 50, 51
"""Tokens around an observation, which has one for each text: its length."""


class FakeDialogue:
    """Tokens 7 and 8 call; a suffix is 50, the lengths of its texts, 51; texts beyond 9 characters are cut."""

    def calls(self, turn: Int32Array) -> Sequence[ToolCall]:
        known = {CALL: ToolCall("add", "{}"), BAD: ToolCall("", "{}", "no JSON")}
        return [known[token] for token in turn.tolist() if token in known]

    def suffix(self, turn: Int32Array, texts: Sequence[str]) -> Suffix:
        tokens = [BEFORE, *(min(len(text), 9) for text in texts), AFTER]
        return Suffix(np.array(tokens, dtype=np.int32), sum(len(text) > 9 for text in texts))


def number_of(request: Request) -> int:
    """The number of a request's turn, from 1."""
    name, _, number = request.id.rpartition("/t")
    return int(number) if name else 1


@dataclass(eq=False)
class Talker:
    """Says a turn by its number: its tokens, the last of which is −1 where the turn is cut. Log-probs are −0.5."""

    turns: Sequence[Sequence[int]]
    versions: Sequence[int] = (0,) * 9
    whole: bool = True
    """Without: every token's version is given, the turn's first token being one older."""
    backwards: bool = False
    asked: list[list[Request]] = field(default_factory=list)
    reissued: Reissued = Reissued()  # noqa: RUF009 - frozen
    hold: Callable[[Request], bool] = lambda _: False
    """Requests that are never answered."""
    closed: int = 0

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        self.asked.append(list(requests))
        try:
            for request in reversed(requests) if self.backwards else requests:
                await asyncio.sleep(0)
                if self.hold(request):
                    await asyncio.Event().wait()
                yield self.answer(request, sampling)
        finally:
            self.closed += 1

    def answer(self, request: Request, sampling: Sampling) -> Completion:
        number = number_of(request)
        said = self.turns[number - 1]
        cut = said[-1] == -1
        tokens = np.array(said[:-1] if cut else said, dtype=np.int32)
        assert request.given + len(tokens) <= sampling.max_tokens
        reason: FinishReason = "length" if cut else "stop"
        version = self.versions[number - 1]
        versions = None if self.whole else np.array([version - 1, *[version] * (len(tokens) - 1)], dtype=np.int32)
        logprobs = np.full(len(tokens), -0.5, dtype=np.float32)
        oldest = version if versions is None else int(versions.min())
        text = f"turn {number}"
        return Completion(
            request.id, request.prompt_id, request.sample, tokens, logprobs, reason, oldest, text, versions
        )


@dataclass(eq=False)
class FakeEnvironments:
    """Answers by the number of the call; ``events`` is what happened to whom."""

    answers: Sequence[Observation] = (OPEN,) * 9
    tools: Sequence[Mapping[str, object]] = TOOLS
    verdict: Verdict | None = None
    begins: Observation = field(default_factory=Observation)
    hold: Callable[[str], bool] = lambda _: False
    events: list[tuple[str, str]] = field(default_factory=list)
    acted: list[Action] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    """Calls so far of the episodes that are not ended."""

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        self.events.append(("begin", f"{episode} {columns} {seed}"))
        self.open[episode] = 0
        await asyncio.sleep(0)
        return self.begins

    async def act(self, episode: str, action: Action) -> Observation:
        self.events.append(("act", episode))
        self.acted.append(action)
        if self.hold(episode):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if episode not in self.open:
            return Observation(status="crashed", reason=f"there is no episode {episode}")
        self.open[episode] += 1
        return self.answers[self.open[episode] - 1]

    async def end(self, episode: str) -> Verdict | None:
        self.events.append(("end", episode))
        return None if self.open.pop(episode, None) is None else self.verdict


PROMPT: Prompt = prompts_of(1)[0]
ROWS = {prompt.id: replace(prompt, columns='{"answer": 2}') for prompt in prompts_of(4)}


def request_of(sample: int = 0, *, prompt: Prompt = PROMPT, label: str = "train/0") -> Request:
    """A request for the two tokens 900 and 950, with the seed 40 + ``sample``."""
    return Request(f"{label}/{prompt.id}/{sample}", prompt.id, prompt.tokens, sample, 40 + sample)


def episodes_of(talker: Talker, environments: FakeEnvironments, *, turns: int = 5, text: str = "") -> EpisodeGenerators:
    """Episodes on fakes."""
    rows = {name: replace(row, told=text) for name, row in ROWS.items()}
    return EpisodeGenerators(talker, environments, FakeDialogue(), prompts=rows, turns=turns)


async def play(
    episodes: EpisodeGenerators, requests: Sequence[Request], *, max_tokens: int = 40, deadline_s: float = 60
) -> list[Completion]:
    """All completions in the order of the requests."""
    async with aclosing(episodes.generate(requests, Sampling(max_tokens=max_tokens), deadline_s=deadline_s)) as stream:  # type: ignore[type-var]
        done = {completion.request_id: completion async for completion in stream}
    return [done[request.id] for request in requests]
