"""From prompts to mixed groups: generation, verification and replay draws overlap; groups come out as they finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from rlep.algorithms.mixing import mix
from rlep.algorithms.selection import replayed_prompts
from rlep.core.seeds import seed_for
from rlep.core.types import Completion, Group, Prompt, Provenance, Request, Sampling, Trajectory, Verdict
from rlep.driver.context import Answers, Clock, Run, Step
from rlep.driver.ports import Advance, Progress
from rlep.driver.replays import drawn_replays, wanted_replays


def requests_for(
    prompts: Sequence[Prompt], samples: int, *, label: str, seed: int, address: tuple[int | str, ...]
) -> list[Request]:
    """``samples`` requests per prompt, prompt by prompt, named ``label/prompt/sample``.

    Each has its own seed, at (``seed``, ``address``, prompt id, sample).
    """
    return [
        Request(
            id=f"{label}/{prompt.id}/{sample}",
            prompt_id=prompt.id,
            tokens=prompt.tokens,
            sample=sample,
            seed=seed_for(seed, *address, prompt.id, sample),
        )
        for prompt in prompts
        for sample in range(samples)
    ]


def provenance(run: Run, version: int, sampling: Sampling) -> Provenance:
    """Where completions sampled under ``version`` come from."""
    return Provenance(
        policy_digest=run.policy_digest,
        policy_version=version,
        tokenizer_digest=run.tokenizer_digest,
        sampling=sampling,
        logprobs_dtype=run.generator_dtype,
    )


def trajectory(run: Run, completion: Completion, verdict: Verdict, sampling: Sampling) -> Trajectory:
    """A verified completion."""
    return Trajectory(
        prompt_id=completion.prompt_id,
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        verdict=verdict,
        provenance=provenance(run, completion.policy_version, sampling),
        created_at=time.time(),
        sample_id=completion.request_id,
        token_versions=completion.token_versions,
    )


async def answered(
    run: Run,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    clock: Clock,
    advance: Advance,
    in_flight: int | None,
) -> AsyncIterator[tuple[str, list[Completion]]]:
    """(prompt id, its completions in sample order) as each prompt's last completion arrives."""
    missing: dict[str, int] = {}
    for request in requests:
        missing[request.prompt_id] = missing.get(request.prompt_id, 0) + 1
    arrived: dict[str, list[Completion]] = {}
    begun, before = time.perf_counter(), clock.seconds.get("generate", 0.0)
    deadline = run.config.rollout.deadline_s
    async for completion in run.roles.generators.generate(requests, sampling, deadline_s=deadline, in_flight=in_flight):
        clock.seconds["generate"] = before + time.perf_counter() - begun
        advance()
        arrived.setdefault(completion.prompt_id, []).append(completion)
        missing[completion.prompt_id] -= 1
        if not missing[completion.prompt_id]:
            yield completion.prompt_id, sorted(arrived.pop(completion.prompt_id), key=lambda c: c.sample)


async def verified(
    run: Run,
    prompts: Sequence[Prompt],
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    bars: RolloutBars,
    clock: Clock,
    in_flight: int | None = None,
) -> Answers:
    """(prompt, its graded trajectories in sample order) as each prompt's verdicts arrive, while others are generated."""
    by_id = {prompt.id: prompt for prompt in prompts}
    finished: asyncio.Queue[tuple[Prompt, list[Trajectory]]] = asyncio.Queue()

    async def grade(prompt: Prompt, completions: list[Completion]) -> None:
        verdicts = await run.roles.verifiers.grade(prompt, completions)
        bars.verify(len(verdicts))
        graded = zip(completions, verdicts, strict=True)
        finished.put_nowait((prompt, [trajectory(run, c, v, sampling) for c, v in graded]))

    async def grade_all() -> None:
        async with asyncio.TaskGroup() as grading:
            async for prompt_id, completions in answered(
                run, requests, sampling, clock=clock, advance=bars.rollout, in_flight=in_flight
            ):
                grading.create_task(grade(by_id[prompt_id], completions))
            written = time.perf_counter()
        clock.seconds["verify"] = clock.seconds.get("verify", 0.0) + time.perf_counter() - written

    feeding = asyncio.create_task(grade_all())
    getting: asyncio.Task[tuple[Prompt, list[Trajectory]]] | None = None
    try:
        for _ in by_id:
            getting = asyncio.create_task(finished.get())
            await asyncio.wait({getting, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and finished.empty():
                await raise_first(feeding)
                raise RuntimeError("the rollout ended before every prompt had its verdicts")
            yield await getting
    finally:
        await ended(feeding, *(() if getting is None else (getting,)))


@dataclass(frozen=True, slots=True)
class RolloutBars:
    """The progress bars of a rollout."""

    rollout: Advance
    verify: Advance


@contextmanager
def bars(progress: Progress, samples: int, name: str = "rollout") -> Iterator[RolloutBars]:
    """Two bars over ``samples`` answers: written and verified."""
    written: Advance
    with progress.phase(name, samples, "answers") as written, progress.phase("verify", samples, "answers") as judged:
        yield RolloutBars(written, judged)


def fresh_answers(step: Step, prompts: Sequence[Prompt], shown: RolloutBars) -> Answers:
    """The step's G answers to each prompt, as they are verified."""
    run, rollout = step.run, step.run.config.rollout
    sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_tokens)
    requests = requests_for(
        prompts,
        rollout.fresh,
        label=f"train/{step.number}",
        seed=run.config.run.seed,
        address=("rollout", step.number),
    )
    return verified(run, prompts, requests, sampling, bars=shown, clock=step.clock, in_flight=step.in_flight)


async def mixed_groups(step: Step, prompts: Sequence[Prompt]) -> AsyncGenerator[Group, None]:
    """Each prompt's mixed group as its answers are verified; the replays are drawn while the answers are written."""
    drawing = asyncio.create_task(drawn_replays(step, prompts))
    try:
        with bars(step.run.progress, len(prompts) * step.run.config.rollout.fresh) as shown:
            graded = fresh_answers(step, prompts, shown) if step.begun is None else step.begun()
            async with aclosing(graded):
                async for prompt, fresh in graded:
                    if step.begun is not None:
                        shown.rollout(len(fresh))
                        shown.verify(len(fresh))
                    if not drawing.done():
                        with step.clock.phase("replay"):
                            await drawing
                    yield mixed(step, prompt, fresh, drawing.result().get(prompt.id, ()))
    finally:
        await ended(drawing)


def mixed(step: Step, prompt: Prompt, fresh: Sequence[Trajectory], replays: Sequence[Trajectory]) -> Group:
    """The group of one prompt; replays are left out where the fresh ones succeed as often as ``replay.only_below``."""
    config = step.run.config
    successes = sum(member.correct for member in fresh) / max(len(fresh), 1)
    wanted = wanted_replays(step) if replayed_prompts([successes], config.replay.only_below)[0] else 0
    return mix(
        prompt,
        fresh,
        replays if wanted else (),
        policy_version=step.number,
        fresh_count=config.rollout.fresh,
        max_replays=wanted,
        tokenizer_digest=step.run.tokenizer_digest,
        max_staleness=config.rollout.max_staleness,
        allow_failed_replays=config.replay.failed > 0,
        require_replays=config.replay.require,
    )


async def raise_first(grouped: Awaitable[None]) -> None:
    """Wait for what runs a task group; raises the group's first error rather than the group around it."""
    try:
        await grouped
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone; what they had to say is no longer of interest."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
