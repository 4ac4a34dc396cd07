"""A step of episodes with simulated engines: what it takes beyond generation, and the driver's CPU time.

512 prompts × 16 episodes of four turns, three of which call the calculator. Real are the step, the wing of episodes, the turns in
token ids, the generators' pool with its queue, and the environment's two worker processes. Simulated, in this process: 64
engines of 128 slots whose tokens come every 20 ms (50 tokens/s for each response, 6,400 for an engine, as of a 7B model on
one H100), and a learner that takes no time.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import selectors
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import numpy as np
import psutil
import ray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlep.actors.gathering import gather_items
from rlep.actors.generators import GeneratorPool
from rlep.actors.timeline import Timeline
from rlep.config.environment import EnvironmentConfig
from rlep.config.settings import parse_config
from rlep.core.episodes import Action, Observation, ToolCall
from rlep.core.seeds import seed_for
from rlep.core.types import Completion, Prompt, Request, Sampling, Verdict, prompt_id_of
from rlep.driver.context import Roles, Run, Step, Trainers
from rlep.driver.ports import Environments, Generators
from rlep.driver.rollout import OnPolicyRollouts, training_requests
from rlep.driver.step import run_step
from rlep.driver.step_metrics import step_metrics
from rlep.driver.wings.episodes import EpisodeGenerators, EpisodeVerifiers
from rlep.engines.dialogue import Dialogue
from rlep.engines.sampler.engine import SamplerHealth
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.services.environment.contract import load_contract
from rlep.services.environment.local import LocalEnvironments

if TYPE_CHECKING:
    from benchmarks.parts.driver import Learner, Weights
    from benchmarks.parts.simulated import Lengths, Silent, Verifiers
else:  # a script's own directory is where it imports from
    try:
        from parts.driver import Learner, Weights
        from parts.simulated import Lengths, Silent, Verifiers
    except ModuleNotFoundError:
        from driver import Learner, Weights
        from simulated import Lengths, Silent, Verifiers

ENGINES, SLOTS, TOKEN_S = 64, 128, 0.02
PROMPTS, FRESH, TURNS, WORKERS = 512, 16, 4, 2
TURN = Lengths(175, 0.6, 1024)
"""Tokens of a turn: 210 at the mean."""
LIMIT = 8192
FACTORY = "rlep.environments.calculator:Calculator"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>{"name": "evaluate", "arguments": {"expression": "(17 + 4) * 3 / 2"}}</tool_call><|im_end|>'


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step took, in seconds."""

    wall: float
    cpu: float
    """Of this process: the driver and the simulated engines."""
    workers_cpu: float
    generation: float
    """Of the longest response, in engines that take up each turn at once."""
    at_home: float
    """Part of the later turns that came to an engine which had an earlier one."""


class Engine:
    """A generator's actor without an engine; its methods answer as those of Ray's handle."""

    def __init__(self, say: Speaker, token_s: float) -> None:
        self._say, self._token_s = say, token_s
        self._had: set[str] = set()

    def __getattr__(self, method: str) -> Any:
        async def answer(*_: object) -> object:
            return SamplerHealth() if method == "health" else None

        return SimpleNamespace(remote=answer, options=lambda **_: SimpleNamespace(remote=self.stream))

    async def stream(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[Awaitable[object]]:
        """Lists of completions, as the real actor gathers them."""
        async for ended in gather_items(self._ended(requests)):
            yield _ready(ended)

    async def _ended(self, requests: Sequence[Request]) -> AsyncGenerator[list[Completion]]:
        clock = asyncio.get_running_loop().time
        begun = clock()
        if self._token_s:
            begun = round(begun / self._token_s) * self._token_s
        for later in [one for one in requests if one.given]:
            self._say.homes.append(later.episode in self._had)
        self._had |= {one.episode for one in requests}
        ends = [(begun + self._say.length(one) * self._token_s, n) for n, one in enumerate(requests)]
        heapq.heapify(ends)
        while ends:
            await asyncio.sleep(max(0.0, ends[0][0] - clock()))
            ended = []
            while ends and ends[0][0] <= clock():
                ended.append(self._say.turn(requests[heapq.heappop(ends)[1]]))
            yield ended


class StepClock(asyncio.SelectorEventLoop):
    """An event loop whose time is this process's CPU time, and what it would have slept: other processes do not slow it."""

    def __init__(self) -> None:
        super().__init__(_Skipping(self))
        self.slept = 0.0

    def time(self) -> float:
        """Seconds."""
        return time.process_time() + self.slept


class _Skipping(selectors.DefaultSelector):
    """Sleeps by passing on the clock."""

    def __init__(self, loop: StepClock) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Look who is ready."""
        self._loop.slept += max(timeout or 0.0, 0.0)
        return super().select(0)


class Here:
    """The environment in this process, for a clock that other processes do not share."""

    def __init__(self) -> None:
        self._contract = load_contract(FACTORY)
        self.tools = self._contract.schemas
        self._open: dict[str, Any] = {}

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        """See the port."""
        self._open[episode] = self._contract.factory()
        self._open[episode].reset(**json.loads(columns))
        return Observation()

    async def act(self, episode: str, action: Action) -> Observation:
        """See the port."""
        calls = [one for one in action if isinstance(one, ToolCall)]
        given = [(one.name, self._contract.tools[one.name].read(one.arguments)) for one in calls]
        return Observation(tuple(getattr(self._open[episode], name)(**arguments) for name, arguments in given))

    async def end(self, episode: str) -> Verdict | None:
        """See the port."""
        del self._open[episode]
        return None


async def _ready(ended: list[Completion]) -> object:
    return ended


class Speaker:
    """What engines say: text of ``Lengths``, which ends in a call in all turns of an episode but the last."""

    def __init__(self, tokenizer: Tokenizer, *, episodes: bool) -> None:
        """Without ``episodes`` a response has all turns at once."""
        self._episodes = episodes
        self.homes: list[bool] = []
        """Of each later turn: whether its engine has had an earlier one."""
        self.length_of = cache(TURN.of)  # whose time is not the driver's
        self._call = np.array(tokenizer.encode_text(CALL), dtype=np.int32)
        self._end = self._call[-1:]
        self._words = np.resize(np.array(tokenizer.encode_text("Let me see what that is. "), dtype=np.int32), LIMIT)
        self._logprobs = np.full(LIMIT, -0.5, dtype=np.float32)

    def length(self, request: Request) -> int:
        """Tokens of the answer to a request."""
        if self._episodes:
            return self.length_of(request.seed)
        return self.whole(request)

    def whole(self, request: Request) -> int:
        """Tokens that an episode's turns have."""
        later = (seed_for(request.seed, "turn", number) for number in range(2, TURNS + 1))
        return sum(self.length_of(seed) for seed in (request.seed, *later))

    def turn(self, request: Request) -> Completion:
        """The answer to a request."""
        last = not self._episodes or request.id.endswith(f"/t{TURNS}")
        end = self._end if last else self._call
        length = max(self.length(request), len(end))
        tokens = np.concatenate([self._words[: length - len(end)], end])
        logprobs = self._logprobs[:length]
        return Completion(request.id, request.prompt_id, request.sample, tokens, logprobs, "stop", 0, "text" * length)


def save_byte_tokenizer(directory: Path) -> None:
    """Save a tokenizer of bytes with a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)
    made.save_pretrained(directory)


@contextmanager
def byte_tokenizer() -> Iterator[Tokenizer]:
    """Load it."""
    with tempfile.TemporaryDirectory() as directory:
        save_byte_tokenizer(Path(directory))
        yield load_tokenizer(Path(directory))


async def pool_of(say: Speaker, token_s: float) -> GeneratorPool:
    """The generators' pool, whose actors are ``Engine``."""

    async def place(*_: object, **__: object) -> Any:
        return Engine(say, token_s)

    cluster = SimpleNamespace(
        report=lambda *_: None,
        timeline=Timeline(),
        forget=lambda _: None,
        home=None,
        reserve=lambda name, _: name,
        place=place,
    )
    config = parse_config({"generator": {"count": ENGINES, "max_sequences": SLOTS}})
    pool = GeneratorPool(cast(Any, cluster), config, Path("model"), lease_s=3600)
    await pool.start(base_version=0)
    return pool


def simulated_step() -> StepCost:
    """A step whose clock is ``StepClock``, with the environment in this process."""
    with asyncio.Runner(loop_factory=StepClock) as runner:
        return runner.run(_step(Here(), TOKEN_S))


def step_at_once(*, episodes: bool) -> StepCost:
    """A step whose engines answer at once; without ``episodes`` its responses have the same lengths and no environment."""

    async def step() -> StepCost:
        if not episodes:
            return await _step(None, 0.0)
        environments = LocalEnvironments(EnvironmentConfig(factory=FACTORY, workers=WORKERS), idle_s=3600)
        await environments.start()
        try:
            return await _step(environments, 0.0)
        finally:
            environments.close()

    return asyncio.run(step())


async def _step(environments: Environments | None, token_s: float) -> StepCost:
    config = parse_config({"rollout": {"prompts": PROMPTS, "fresh": FRESH, "max_tokens": LIMIT}})
    asked = [
        Prompt(prompt_id_of(f"q{number}", "2"), f"q{number}", "2", np.arange(200, dtype=np.int32), "math")
        for number in range(PROMPTS)
    ]
    with byte_tokenizer() as tokenizer:
        say = Speaker(tokenizer, episodes=environments is not None)
        generation = token_s * max(map(say.whole, training_requests(config, 0, asked)))
        pool = await pool_of(say, token_s)
        generators: Generators = pool
        if environments is not None:
            dialogue = Dialogue(tokenizer.with_tools(environments.tools), observation_tokens=512)
            starts = {prompt.id: replace(prompt, columns="{}") for prompt in asked}
            generators = EpisodeGenerators(pool, environments, dialogue, prompts=starts, turns=TURNS)
        run = Run(config, Roles(generators, EpisodeVerifiers(Verifiers())), Silent(), "tok", "base", "float32")
        step = Step(run, Trainers(Learner(), Weights(), OnPolicyRollouts(run), None), 0, 0, lambda *_: ())
        clock = asyncio.get_running_loop().time
        wall, cpu, below = clock(), time.process_time(), cpu_below()
        step_metrics(await run_step(step, asked))
        at_home = sum(say.homes) / max(len(say.homes), 1)
        cost = StepCost(clock() - wall, time.process_time() - cpu, cpu_below() - below, generation, at_home)
        with mock.patch.object(ray, "kill"):  # it would start a Ray
            await pool.close()
        return cost


def cpu_below() -> float:
    """CPU seconds of the processes below this one."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))
