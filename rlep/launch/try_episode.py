"""Episodes played before a run, for ``rlep check --try``: by the run's own model, one engine and environments of this process."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

from rlep.check.finding import CheckSkipped, Finding
from rlep.check.inputs import Inputs, Subject
from rlep.check.parts.outcome import Check, CheckFailed
from rlep.config.schema import Config
from rlep.core.plural import counted
from rlep.core.seeds import seed_for
from rlep.core.transcript import lines_of, part_texts
from rlep.core.types import Completion, Reissued, Request, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.hub.resolve import model_text
from rlep.launch.wings import episodes
from rlep.services.environment.local import LocalEnvironments, local_environments

PLAYED = 4
"""Episodes of the first question."""
REMEDY = "look at the episode: the environment's class, its chat template and its limits are under [environment]"


def try_episode(config: Config, begun: Callable[[str], None]) -> Iterator[Finding]:
    """Play episodes of the first question, and show the one with the most turns; nothing where there is no environment.

    ``begun`` is told its name before. Skipped where the model's weights are not on this machine: nothing is downloaded.
    """
    if config.environment.factory:
        begun("episode")
        deadline_s = config.generator.start_deadline_s + config.rollout.deadline_s
        yield Check("episode", partial(_show, config), REMEDY, deadline_s).finding()


def _show(config: Config) -> str:
    subject = Subject(config, weights=False)
    if not any(subject.model.glob("*.safetensors")):
        raise CheckSkipped(f"the weights of {model_text(config.model)} are not on this machine")
    inputs = subject.inputs()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_environment(config)
    alone = config.with_values(rollout={"max_staleness": 0})  # its weights never change
    return asyncio.run(_played(alone, inputs, Sampler(subject.model, alone)))


async def _played(config: Config, inputs: Inputs, sampler: Sampler) -> str:
    try:
        await sampler.start(config.generator.start_deadline_s)
        sampler.serve_base(0)
        async with local_environments(config.environment) as environments:
            return shown(inputs, environments, await _play(config, inputs, sampler, environments))
    finally:
        await sampler.close()


async def _play(
    config: Config, inputs: Inputs, sampler: Sampler, environments: LocalEnvironments
) -> Sequence[Completion]:
    assert inputs.train is not None  # a training run's
    first = inputs.train.prompts[0]
    requests = [
        Request(f"try/{first.id}/{n}", first.id, first.tokens, n, seed_for(config.run.seed, "try", n))
        for n in range(PLAYED)
    ]
    generators = episodes(config, inputs, _OneEngine(sampler), environments)
    sampling, deadline_s = config.sampling(config.rollout), config.rollout.deadline_s
    return [one async for one in generators.generate(requests, sampling, deadline_s=deadline_s)]


def shown(inputs: Inputs, environments: LocalEnvironments, played: Sequence[Completion]) -> str:
    """Return what became of episodes, and the one with the most turns. Raises ``CheckFailed`` where an environment fails."""
    written = {one.sample: _lines(inputs, one) for one in played}
    longest = max(sorted(played, key=lambda one: one.sample), key=lambda one: _count(written[one.sample], "turn"))
    text = "\n".join(f"{kind:>8} {line}" for kind, block in written[longest.sample] for line in block.split("\n"))
    graded = Counter("for the verifier" if one.verdict is None else one.verdict.status for one in played)
    for one in played:
        if one.verdict is not None and one.verdict.status in ("crashed", "timeout"):
            raise CheckFailed(f"an episode is {one.verdict.status}: {one.verdict.reason}\n{text}")
    every = [line for lines in written.values() for line in lines]
    told = f"{counted(PLAYED, 'episode')} of the first question: {counted(_count(every, 'turn'), 'turn')}, "
    if environments.tools:
        calls = _count(every, "calls")
        told += f"{counted(calls, 'call')} of tools, " if calls else "no tool was called, "
    cut = sum(one.finish_reason == "length" for one in played)
    told += f"{cut} cut at rollout.max_tokens; " + ", ".join(f"{count} {status}" for status, count in graded.items())
    return f"{told}. The one with the most turns:\n{text}"


def _lines(inputs: Inputs, one: Completion) -> Sequence[tuple[str, str]]:
    decode = inputs.tokenizer.decode
    parts = [decode(one.tokens)] if one.sampled is None else part_texts(one.tokens, one.sampled, decode)
    return list(lines_of(parts))


def _count(lines: Sequence[tuple[str, str]], kind: str) -> int:
    return sum(one == kind for one, _ in lines)


class _OneEngine:
    """The driver's generators as one engine of this process."""

    reissued = Reissued()

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        async for some in self._sampler.generate(requests, sampling):
            for completion in some:
                yield completion
