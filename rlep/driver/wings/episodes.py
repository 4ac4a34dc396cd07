"""Episodes: each response is played in turns with an environment, and comes out as one completion.

    request ─► turn ─► calls or text ─► environment ─► observation ─► turn ─► … ─► completion, with its mask and verdict
               ▲ inner generators       ▲ act                         ▲ prompt + episode so far + suffix

All episodes of a call run at once. Their first turns are the requests themselves, given to the inner generators together; a later
turn is given as soon as its observation is there, with those of others that are ready at that moment.

An episode ends: without a call of a tool · by ``step`` · after ``turns`` · at ``max_tokens``, cut · when its environment fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rlep.core.episodes import Action, Observation, Suffix, ToolCall, reset_seed
from rlep.core.errors import DeadlineExceeded, RlepError
from rlep.core.seeds import seed_for
from rlep.core.types import Completion, Int32Array, Prompt, Reissued, Request, Sampling, Status, Verdict
from rlep.driver.ports import Environments, Generators, Verifiers
from rlep.driver.tasks import Produced, together
from rlep.metrics.catalogue import MetricValue

Value = TypeVar("Value", bound=np.generic)

FORGET_S = 10.0
"""Longest wait for an environment to forget an episode that was given up; it forgets it later by itself."""
LATER_S = 60.0
"""Inner generators have so much longer than a call, so that its own error names what is missing."""
ERROR = "error: "
"""Beginning of a tool's answer to a call that failed."""
DRIFTED = (
    "reset says something else than when the data was loaded: what it draws has to come from random or numpy's global "
    "generator, which are seeded, or from its row"
)


class Turns(Protocol):
    """Turns in token ids."""

    def calls(self, turn: Int32Array) -> Sequence[ToolCall]:
        """Return the calls of tools in the policy's turn ``[n]``."""
        ...

    def suffix(self, turn: Int32Array, texts: Sequence[str]) -> Suffix:
        """Return what follows the policy's turn ``[n]``, with these texts as the observation."""
        ...


@dataclass(slots=True)
class _Episode:
    """An episode so far."""

    request: Request
    turns: list[Completion] = field(default_factory=list)
    suffixes: list[Suffix] = field(default_factory=list)
    """What follows each turn but the last."""
    waits: Literal["generator", "environment"] = "generator"
    failed: Observation | None = None
    cut: bool = False
    """It ended for lack of room."""
    tool_errors: int = 0

    @property
    def length(self) -> int:
        """Tokens so far."""
        return sum(len(turn.tokens) for turn in self.turns) + sum(len(suffix.tokens) for suffix in self.suffixes)

    def next_request(self) -> Request:
        """Return the request of the next turn; a turn is counted from 1."""
        number, first = len(self.turns) + 1, self.request
        return replace(
            first,
            id=f"{first.id}/t{number}",
            tokens=np.concatenate([first.tokens, self._tokens()]),
            seed=seed_for(first.seed, "turn", number),
            given=self.length,
            episode=first.id,
        )

    def completion(self, verdict: Verdict | None) -> Completion:
        """Return the whole as one response; of a single turn, the turn itself."""
        last = self.turns[-1]
        if len(self.turns) == 1:
            return replace(last, finish_reason="length" if self.cut else last.finish_reason, verdict=verdict)
        return Completion(
            request_id=self.request.id,
            prompt_id=last.prompt_id,
            sample=last.sample,
            tokens=self._tokens(),
            logprobs=self._woven([turn.logprobs for turn in self.turns], lambda _: 0.0),
            finish_reason="length" if self.cut else last.finish_reason,
            policy_version=min(turn.policy_version for turn in self.turns),
            text=last.text,
            token_versions=self._versions(),
            sampled=self._woven([np.ones(len(turn.tokens), dtype=np.bool_) for turn in self.turns], lambda _: False),
            verdict=verdict,
        )

    def _tokens(self) -> Int32Array:
        after = [suffix.tokens for suffix in self.suffixes]
        parts = [part for pair in zip([turn.tokens for turn in self.turns], after, strict=False) for part in pair]
        return np.concatenate([*parts, *[turn.tokens for turn in self.turns[len(after) :]]])

    def _versions(self) -> Int32Array | None:
        """The environment's tokens have the version of the turn before."""
        versions = {turn.policy_version for turn in self.turns}
        if len(versions) == 1 and all(turn.token_versions is None for turn in self.turns):
            return None
        parts = [
            np.full(len(turn.tokens), turn.policy_version, dtype=np.int32)
            if turn.token_versions is None
            else turn.token_versions
            for turn in self.turns
        ]
        return self._woven(parts, lambda part: part[-1] if len(part) else 0)

    def _woven(self, parts: Sequence[NDArray[Value]], fill: Callable[[NDArray[Value]], object]) -> NDArray[Value]:
        """Join values of the turns' tokens, with a value for the tokens after each."""
        woven = [parts[0]]
        for suffix, before, part in zip(self.suffixes, parts[:-1], parts[1:], strict=True):
            woven += [np.full(len(suffix.tokens), fill(before), dtype=part.dtype), part]
        return np.concatenate(woven)


class EpisodeGenerators:
    """The ``Generators`` port: one completion per request, which is a whole episode."""

    def __init__(
        self,
        inner: Generators,
        environments: Environments,
        dialogue: Turns,
        *,
        prompts: Mapping[str, Prompt],
        turns: int,
    ) -> None:
        """``prompts``: by id, all that are asked. ``turns``: the most of an episode."""
        self.inner, self.environments, self.dialogue, self.turns = inner, environments, dialogue, turns
        self.prompts = prompts
        self._counts = Counter[str]()

    @property
    def reissued(self) -> Reissued:
        """Counts of the inner generators."""
        return self.inner.reissued

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """Yield one completion per request, each when its episode has ended.

        Raises ``DeadlineExceeded`` that counts the missing episodes by what they wait for, and what the inner generators raise.
        """
        played = Produced(_Play(self, requests, sampling, deadline_s).run)
        try:
            async for completion in played:
                yield completion
        finally:
            await played.aclose()

    def metrics(self) -> dict[str, MetricValue]:
        """Return ``episode/…`` of the training episodes that have ended since this was last asked; empty without any."""
        counts, self._counts = self._counts, Counter[str]()
        if not (ended := counts["episodes"]):
            return {}
        return {
            "episode/turns": counts["turns"] / ended,
            "episode/observation_tokens": counts["observation_tokens"] / ended,
            "episode/cut": counts["cut"],
            "episode/tool_errors": counts["tool_errors"],
            "episode/failed": counts["failed"],
        }

    def count(self, episode: _Episode) -> None:
        """Count an episode of training that has ended: its request is named ``train/…``."""
        if not episode.request.id.startswith("train/"):
            return
        counts = self._counts
        counts["episodes"] += 1
        counts["turns"] += len(episode.turns)
        counts["observation_tokens"] += sum(len(suffix.tokens) for suffix in episode.suffixes)
        counts["cut"] += sum(suffix.cut for suffix in episode.suffixes)
        counts["tool_errors"] += episode.tool_errors
        counts["failed"] += episode.failed is not None


class _Play:
    """The episodes of one call."""

    def __init__(
        self, owner: EpisodeGenerators, requests: Sequence[Request], sampling: Sampling, deadline_s: float
    ) -> None:
        self._owner, self._sampling, self._deadline_s = owner, sampling, deadline_s
        self._requests = [replace(request, episode=request.id) for request in requests]
        self._open = {request.id: _Episode(request) for request in self._requests}
        self._answers: dict[str, asyncio.Future[Completion]] = {}
        self._ready: list[Request] = []

    async def run(self, put: Callable[[Completion], None]) -> None:
        """Play all, and hand over each as it ends."""
        try:
            async with asyncio.timeout(self._deadline_s):
                async with together() as tasks:
                    self._tasks = tasks
                    first = [self._answer(request) for request in self._requests]
                    tasks.create_task(self._read(self._requests))
                    for request, answer in zip(self._requests, first, strict=True):
                        tasks.create_task(self._play(self._open[request.id], answer, put))
        except TimeoutError as error:
            if isinstance(error, RlepError):
                raise
            waits = Counter(episode.waits for episode in self._open.values())
            raise DeadlineExceeded(
                f"rollout: {len(self._open)} of {len(self._requests)} episodes missing after {self._deadline_s:.0f} s, first "
                f"{next(iter(self._open), None)}; {waits['generator']} wait for a generator, {waits['environment']} for their "
                "environment"
            ) from None

    def _answer(self, request: Request) -> asyncio.Future[Completion]:
        answer = self._answers[request.id] = asyncio.get_running_loop().create_future()
        return answer

    async def _read(self, requests: Sequence[Request]) -> None:
        completions = self._owner.inner.generate(requests, self._sampling, deadline_s=self._deadline_s + LATER_S)
        async with aclosing(cast("AsyncGenerator[Completion]", completions)):
            async for completion in completions:
                self._answers.pop(completion.request_id).set_result(completion)

    def _ask(self, request: Request) -> asyncio.Future[Completion]:
        """Ask for a turn, together with all that are asked for before the event loop's next round."""
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._send)
        self._ready.append(request)
        return self._answer(request)

    def _send(self) -> None:
        ready, self._ready = self._ready, []
        reading = self._read(ready)
        try:
            self._tasks.create_task(reading)
        except RuntimeError:  # the group is ending: nobody waits for them
            reading.close()

    async def _play(
        self, episode: _Episode, answer: asyncio.Future[Completion], put: Callable[[Completion], None]
    ) -> None:
        environments, name = self._owner.environments, episode.request.id
        episode.turns.append(await answer)
        episode.waits = "environment"
        ended = False
        try:
            await self._begin(episode)
            while episode.failed is None and (suffix := await self._act(episode)) is not None:
                episode.suffixes.append(suffix)
                episode.waits = "generator"
                episode.turns.append(await self._ask(episode.next_request()))
                episode.waits = "environment"
            verdict, ended = await environments.end(name), True
        finally:
            if not ended:
                await _forget(environments, name)
        if episode.failed is not None and (verdict is None or verdict.status != episode.failed.status):
            status = cast("Status", episode.failed.status)
            verdict = Verdict(status, None, "environment", "", reason=episode.failed.reason)
        del self._open[name]
        self._owner.count(episode)
        put(episode.completion(verdict))

    async def _begin(self, episode: _Episode) -> None:
        prompt = self._owner.prompts[episode.request.prompt_id]
        begun = await self._owner.environments.begin(episode.request.id, prompt.columns, seed=reset_seed(prompt.id))
        if begun.failed:
            episode.failed = begun
        elif "".join(begun.texts) != prompt.told:
            episode.failed = Observation(status="crashed", reason=DRIFTED)

    async def _act(self, episode: _Episode) -> Suffix | None:
        """Have the environment answer the last turn; None where that was the last one of the episode."""
        turn = episode.turns[-1]
        if turn.finish_reason == "length":
            return None
        observed = await self._observe(episode, turn)
        if observed.failed:
            episode.failed = observed
        if observed.status != "open" or not observed.texts or len(episode.turns) == self._owner.turns:
            return None
        suffix = self._owner.dialogue.suffix(turn.tokens, observed.texts)
        episode.cut = episode.length + len(suffix.tokens) >= self._sampling.max_tokens
        return None if episode.cut else suffix

    async def _observe(self, episode: _Episode, turn: Completion) -> Observation:
        """Return the answer to a turn; of one without a call, where there are tools, none."""
        environments, name = self._owner.environments, episode.request.id
        if not environments.tools:
            return await environments.act(name, turn.text)
        calls = self._owner.dialogue.calls(turn.tokens)
        action: Action = [call for call in calls if not call.fault]
        observed = await environments.act(name, action) if action else Observation()
        if observed.failed:
            return observed
        answers = iter(observed.texts)
        texts = [ERROR + call.fault if call.fault else next(answers) for call in calls]
        episode.tool_errors += sum(text.startswith(ERROR) for text in texts)
        return observed._replace(texts=tuple(texts))


async def _forget(environments: Environments, name: str) -> None:
    """End an episode that is given up, whatever comes of it."""
    with suppress(RlepError, TimeoutError):
        async with asyncio.timeout(FORGET_S):
            await environments.end(name)


class EpisodeVerifiers:
    """The ``Verifiers`` port: what its environment has judged stays as it is; the text of the last turn of others is graded."""

    def __init__(self, inner: Verifiers) -> None:
        self._inner = inner

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in order."""
        left = [completion for completion in completions if completion.verdict is None]
        graded = iter(await self._inner.grade(prompt, left) if left else ())
        return [completion.verdict or next(graded) for completion in completions]
