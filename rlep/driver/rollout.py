"""From prompts to verified responses: each prompt is graded as soon as its responses are there, others meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlep.config.schema import Config
from rlep.core.seeds import seed_for
from rlep.core.types import Completion, Prompt, Provenance, Request, Sampling, Trajectory, Verdict
from rlep.driver.clock import Clock
from rlep.driver.context import Run
from rlep.driver.crashes import check_decided, judge_of
from rlep.driver.ports import Progress, RolloutBars, Verified
from rlep.driver.tasks import Produced, together


def requests_for(
    prompts: Sequence[Prompt], samples: int, *, label: str, seed: int, address: tuple[int | str, ...]
) -> list[Request]:
    """Return ``samples`` requests per prompt, prompt by prompt, named ``label/prompt/sample``.

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


def training_requests(config: Config, step: int, prompts: Sequence[Prompt]) -> list[Request]:
    """Return the G requests for each prompt of a step: a function of run seed, step, prompt id and sample."""
    label, address = f"train/{step}", ("rollout", step)
    return requests_for(prompts, config.rollout.fresh, label=label, seed=config.run.seed, address=address)


def provenance(run: Run, version: int, sampling: Sampling) -> Provenance:
    """Name the origin of completions sampled under ``version``."""
    return Provenance(
        policy_digest=run.policy_digest,
        policy_version=version,
        tokenizer_digest=run.tokenizer_digest,
        sampling=sampling,
        logprobs_mode=run.config.logprobs_mode,
        logprobs_dtype=run.generator_dtype,
        template_digest=run.template_digest,
        environment_digest=run.environment_digest,
    )


def trajectory(run: Run, completion: Completion, verdict: Verdict, sampling: Sampling) -> Trajectory:
    """Join a completion and its verdict."""
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
        sampled=completion.sampled,
    )


def verify_rollout(
    run: Run,
    prompts: Sequence[Prompt],
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    bars: RolloutBars,
    clock: Clock,
) -> Produced[tuple[Prompt, list[Trajectory]]]:
    """Yield (prompt, its verified trajectories in sample order): graded when its last response arrives, others meanwhile.

    Runs from now on; the caller closes it. Ends with VerifierError where the user's function or environment decided on none.
    """
    by_id = {prompt.id: prompt for prompt in prompts}
    missing = Counter(request.prompt_id for request in requests)
    arrived: dict[str, list[Completion]] = {prompt_id: [] for prompt_id in missing}
    deadline = deadline_of(run.config, len(requests))

    async def produce(put: Callable[[tuple[Prompt, list[Trajectory]]], None]) -> None:
        found: list[Verdict] = []

        async def grade(prompt: Prompt, completions: list[Completion]) -> None:
            verdicts = await run.roles.verifiers.grade(prompt, completions)
            found.extend(verdicts)
            bars.verify(len(verdicts))
            pairs = zip(completions, verdicts, strict=True)
            put((prompt, [trajectory(run, completion, verdict, sampling) for completion, verdict in pairs]))

        async with together() as tasks:
            grading = []
            with clock.phase("generate"):
                async for completion in run.roles.generators.generate(requests, sampling, deadline_s=deadline):
                    bars.rollout(1)
                    arrived[completion.prompt_id].append(completion)
                    missing[completion.prompt_id] -= 1
                    if not missing[completion.prompt_id]:
                        whole = sorted(arrived.pop(completion.prompt_id), key=lambda completion: completion.sample)
                        grading.append(tasks.create_task(grade(by_id[completion.prompt_id], whole)))
            with clock.phase("verify"):
                await asyncio.gather(*grading)
        if arrived:
            raise RuntimeError(f"the rollout ended with {len(arrived)} of {len(by_id)} prompts incomplete")
        check_decided(judge_of(run.config), len(by_id), found)

    return Produced(produce)


def deadline_of(config: Config, responses: int) -> float:
    """Seconds for a rollout: ``rollout.deadline_s``, in proportion more where it has more responses than a step's.

    With ``rollout.max_staleness`` the rollouts that were begun before it come first, and have theirs.
    """
    share = responses / (config.rollout.prompts * config.rollout.fresh)
    return config.rollout.deadline_s * (max(1.0, share) + config.rollout.max_staleness)


@contextmanager
def bars(progress: Progress, samples: int, name: str = "rollout") -> Iterator[RolloutBars]:
    """Two bars over ``samples`` responses: generated and verified."""
    with (
        progress.phase(name, samples, "responses") as generated,
        progress.phase("verify", samples, "responses") as graded,
    ):
        yield RolloutBars(generated, graded)


class OnPolicyRollouts:
    """The ``Rollouts`` port: a step's rollout begins when the step asks for it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def of(
        self, step: int, prompts: Sequence[Prompt], requests: Sequence[Request], clock: Clock, shown: RolloutBars
    ) -> Verified:
        """Begin the rollout."""
        sampling = self._run.config.sampling(self._run.config.rollout)
        return verify_rollout(self._run, prompts, requests, sampling, bars=shown, clock=clock)

    async def drop(self) -> None:
        """Do nothing: no rollout is begun before its step."""
