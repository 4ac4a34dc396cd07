"""Plan of a run in numbers, before anything starts: pure arithmetic over the config and what is known of its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.data.prompts import PromptReport, order_of
from rlep.plan.devices import roles_of, wanted_cpus, wanted_gpus
from rlep.plan.fit import Fit, plan_fit
from rlep.plan.host import HostPlan, plan_host
from rlep.plan.learner import LearnerPlan, plan_learner
from rlep.plan.memory import MemoryPlan, plan_memory
from rlep.plan.model_shape import ModelShape

EXPECTED_RESPONSE = 3
"""A response is expected to take a third of ``rollout.max_tokens``; the true length is known after a step."""


@dataclass(frozen=True, slots=True)
class PoolCoverage:
    """Contents of an experience pool."""

    source: str
    """Source of the figures."""
    answers: Mapping[int, int]
    """Stored responses → questions with that many."""

    @property
    def questions(self) -> int:
        """Questions counted, those without a response included."""
        return sum(self.answers.values())

    def eligible(self, minimum: int) -> int:
        """Questions with at least ``minimum`` responses."""
        return sum(questions for count, questions in self.answers.items() if count >= minimum)

    def drawn(self, count: int, minimum: int) -> int:
        """Replays drawn when every question is asked for ``count`` once."""
        return sum(questions * min(count, held) for held, questions in self.answers.items() if held >= minimum)


@dataclass(frozen=True, slots=True)
class Known:
    """Inputs of a config as far as they could be read; None is what is missing."""

    data: PromptReport | None = None
    prompt_tokens: float | None = None
    """Mean length of the training prompts kept; None without tokenizer."""
    evaluation_questions: int | None = None
    model: ModelShape | None = None
    pool: PoolCoverage | None = None
    missing: tuple[str, ...] = ()
    """A sentence on each input that is not there."""
    missing_cpus: str = ""
    """Why the actors do not fit this machine, and what helps; empty where they fit, or where a cluster is joined."""
    missing_gpus: str = ""
    """Likewise of GPUs."""
    host_bytes: int | None = None
    """Memory of this machine; None where a cluster is joined."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One training step."""

    prompts: int
    groups: int
    fresh: int
    replays: int
    """M of the first step."""
    sequences: int
    """Sequences trained on when every question has M stored responses."""
    updates: int
    prompts_per_update: int
    sequences_per_update: int
    sampled_at_most: int
    """Fresh responses generated, with every refill of dynamic sampling."""
    steps: int
    steps_per_epoch: int | None
    tokens_expected: int
    """Prompt and response tokens trained on, with responses of a third of the limit."""
    tokens_worst: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Replays among the sequences of the first step."""

    share_full: float
    """M / (G + M): every question has M stored responses."""
    source: str | None
    """Source of the pool's coverage; None with the figures below where it is not known."""
    questions: int | None
    eligible: int | None
    """Questions with at least ``replay.minimum`` responses."""
    per_group: float | None
    """Replays a group gets on average."""
    share_expected: float | None


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Held-out accuracy in a whole run; None where the questions cannot be counted."""

    questions: int | None
    times: int
    samples_each: int
    samples: int | None
    """Responses in the whole run."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """Resources that one role asks of the cluster."""

    role: str
    actors: int
    cpus: float
    """In all."""
    gpus: float
    """In all."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A whole run."""

    data: PromptReport | None
    step: StepPlan
    replay: ReplayPlan | None
    evaluation: EvaluationPlan
    learner: LearnerPlan | None
    """One rank; None without a model, like the five below."""
    memory: MemoryPlan | None
    """One generator."""
    host: HostPlan | None
    """Memory and disk beside the GPUs."""
    fit: Fit | None
    """Contents of one GPU."""
    fits: bool | None
    """Learner and generators fit; None also where the memory there is is not known."""
    reason: str | None
    """The numbers, and what helps where they do not fit."""
    roles: tuple[RolePlan, ...]
    cpus: float
    """Of the whole cluster."""
    gpus: float
    """Of the whole cluster; those that generators and learners share are counted once."""
    missing: tuple[str, ...]
    missing_cpus: str
    """Why the actors do not fit this machine, and what helps; empty where they fit, or where a cluster is joined."""
    missing_gpus: str
    """Likewise of GPUs."""


def make_plan(config: Config, known: Known, gpu_bytes: int) -> RunPlan:
    """The plan of a training run, on GPUs of ``gpu_bytes`` each.

    Raises:
        DataError: a step wants more prompts than there are.
    """
    model = known.model
    fit = plan_fit(config, model, gpu_bytes=gpu_bytes, host_bytes=known.host_bytes) if model else None
    return RunPlan(
        data=known.data,
        step=_step(config, known),
        replay=_replay(config, known.pool) if config.replay.count else None,
        evaluation=_evaluation(config, known.evaluation_questions),
        learner=plan_learner(config, model) if model else None,
        memory=plan_memory(config, model, gpu_bytes) if model else None,
        host=plan_host(config, model) if model else None,
        fit=fit,
        fits=fit.fits if fit else None,
        reason=fit.reason if fit else None,
        roles=tuple(
            RolePlan(name, count, count * role.cpus, count * role.gpus)
            for name, (_, count, role) in roles_of(config).items()
        ),
        cpus=wanted_cpus(config),
        gpus=wanted_gpus(config),
        missing=known.missing,
        missing_cpus=known.missing_cpus,
        missing_gpus=known.missing_gpus,
    )


def read_collection(path: Path) -> PoolCoverage:
    """The coverage in a ``collection.json``. Raises ``ConfigError`` for any other file."""
    try:
        counts = json.loads(path.read_text())["answers_per_question"]
        return PoolCoverage(str(path), {held: int(questions) for held, questions in enumerate(counts)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what a collection writes: {error!r}") from None


def _step(config: Config, known: Known) -> StepPlan:
    rollout, update = config.rollout, config.update
    replays = config.replay.count_at(config.replay.start_step, config.run.steps)
    epoch = None
    if known.data is not None:
        epoch = order_of(config, known.data).steps_per_epoch
    prompt = config.data.max_prompt_tokens if known.prompt_tokens is None else known.prompt_tokens
    added = replays if config.replay.group == "add" else 0
    sequences = rollout.prompts * (rollout.fresh + added)
    refills = config.rollout.refill_limit if rollout.dynamic_sampling else 1
    return StepPlan(
        prompts=rollout.prompts,
        groups=rollout.prompts,
        fresh=rollout.fresh,
        replays=replays,
        sequences=sequences,
        updates=config.updates_per_step,
        prompts_per_update=update.prompts,
        sequences_per_update=update.prompts * (rollout.fresh + added),
        sampled_at_most=rollout.prompts * rollout.fresh * refills,
        steps=config.run.steps,
        steps_per_epoch=epoch,
        tokens_expected=round(sequences * (prompt + rollout.max_tokens / EXPECTED_RESPONSE)),
        tokens_worst=sequences * config.context,
    )


def _replay(config: Config, pool: PoolCoverage | None) -> ReplayPlan:
    fresh, minimum = config.rollout.fresh, config.replay.offline_minimum
    count = config.replay.count_at(config.replay.start_step, config.run.steps)
    members = fresh + count if config.replay.group == "add" else fresh
    full = count / members
    if pool is None or not pool.questions:
        return ReplayPlan(full, None, None, None, None, None)
    per_group = pool.drawn(count, minimum) / pool.questions
    return ReplayPlan(
        share_full=full,
        source=pool.source,
        questions=pool.questions,
        eligible=pool.eligible(minimum),
        per_group=per_group,
        share_expected=per_group / (fresh + per_group if config.replay.group == "add" else fresh),
    )


def _evaluation(config: Config, questions: int | None) -> EvaluationPlan:
    rule, steps = config.evaluation, config.run.steps
    between = len(rule.compute) or (len(range(rule.every, steps, rule.every)) if rule.every else 0)
    first, last = rule.first_samples or rule.samples, rule.final_samples or rule.samples
    drawn = first + between * rule.samples + last
    return EvaluationPlan(
        questions=questions,
        times=between + 2 if questions != 0 else 0,
        samples_each=rule.samples,
        samples=None if questions is None else questions * drawn,
    )
