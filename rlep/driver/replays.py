"""Stored responses that a step replays: the pool's own uniform draw, or a choice among all that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlep.algorithms.mixing import fitting
from rlep.algorithms.packing import answer_batch
from rlep.algorithms.selection import Candidate, select
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, MixingError
from rlep.core.plural import counted
from rlep.core.seeds import seed_for
from rlep.core.types import ALL, Float64Array, Prompt, Trajectory
from rlep.driver.context import Step
from rlep.driver.ports import ReplaySource
from rlep.methods.exgrpo import ExGrpo
from rlep.methods.replay_method import ReplayMethod, load_method

Replays = dict[str, Sequence[Trajectory]]
"""Prompt id → its replays."""


def takes_data_in_order(config: Config) -> bool:
    """Tell whether a run trains on the data's next questions: its method chooses none of them."""
    return load_method(config.replay.method).questions is ReplayMethod.questions


def choose_method(config: Config) -> ReplayMethod:
    """Return the replay method of a run. Raises ``ConfigError`` where ``replay.method`` names none."""
    kind, name = load_method(config.replay.method), f'replay.method = "{config.replay.method}"'
    if config.rollout.max_staleness and not takes_data_in_order(config):
        raise ConfigError(f"{name} with rollout.max_staleness: later steps' prompts are not known yet")
    if config.replay.source == "offline" and issubclass(kind, ExGrpo):
        raise ConfigError(f'{name} draws questions by what this run has stored: set replay.source to "live" or "both"')
    if config.replay.group != "add" and kind.accepts is not ReplayMethod.accepts:
        raise ConfigError(
            f'{name} with replay.group = "{config.replay.group}": who gets replays would be known only after all G responses are '
            "generated"
        )
    if config.replay.require and kind.with_replays is not ReplayMethod.with_replays:
        raise ConfigError(f"replay.require with {name}, which leaves prompts of a step without replays; leave it out")
    made = kind(seed=config.run.seed, fresh=config.rollout.fresh, options=config.replay.options)
    if isinstance(made, ExGrpo) and not int(made.ratio * config.rollout.prompts):
        raise ConfigError(
            f"{name} with rollout.prompts = {config.rollout.prompts}: a share of {made.ratio:g} of them is no prompt; use more"
        )
    return made


def count_wanted(step: Step) -> int:
    """Return the replays of a group whose prompt has enough stored responses: M and the failed ones."""
    return step.replays + step.run.config.replay.failed if step.replays else 0


async def draw_replays(step: Step, prompts: Sequence[Prompt]) -> Replays:
    """Draw up to M successes of each prompt, and up to ``replay.failed`` failures after them; with M = 0 the pool is not asked.

    Responses that this run cannot train on are left out of what was drawn, and counted.

    A pure function of the pools' content, seed, step and prompt id; ``least-used`` also of what earlier steps replayed,
    ``most-probable`` and ``least-probable`` also of the step's weights.
    """
    rule, seed = step.run.config.replay, step.run.config.run.seed
    if not step.replays:
        return {}
    method, pool = step.trainers.method, _pool(step, step.trainers.pool)
    ids = method.with_replays(step.number, [prompt.id for prompt in prompts])
    step.asked |= {*ids}
    if not ids:
        return {}
    if type(method).choose is not ReplayMethod.choose:
        held = await pool.sample(ids, ALL, seed=seed, step=step.number)
        drawn = {name: method.choose(step.number, name, held.get(name, ()), step.replays) for name in ids}
    elif rule.selection == "uniform":
        drawn = dict(await pool.sample(ids, step.replays, seed=seed, step=step.number))
    else:
        held = await pool.sample(ids, ALL, seed=seed, step=step.number)
        drawn = await _select(step, [prompt for prompt in prompts if prompt.id in held], held)
    if rule.failed:
        failures = _pool(step, step.trainers.failures)
        wrong = await failures.sample(ids, rule.failed, seed=seed_for(seed, "failures"), step=step.number)
        drawn = {prompt_id: (*drawn.get(prompt_id, ()), *wrong.get(prompt_id, ())) for prompt_id in ids}
    return _fitting(step, drawn)


def replay_rules(step: Step) -> dict[str, Any]:
    """Return what ``check_replays`` asks of a response that this run trains on."""
    run, config = step.run, step.run.config
    return {
        "tokenizer_digest": run.tokenizer_digest,
        "template_digest": "" if config.replay.other_template == "render" else run.template_digest,
        "environment_digest": run.environment_digest,
        "vocabulary": run.vocabulary,
        "max_tokens": config.rollout.max_tokens,
    }


def _fitting(step: Step, drawn: Replays) -> Replays:
    rules, reasons, fit = replay_rules(step) | {"allow_failed": step.run.config.replay.failed > 0}, [], Replays()
    for prompt_id, replays in drawn.items():
        fit[prompt_id], wrong = fitting(prompt_id, replays, **rules)
        reasons += wrong
    step.unfit += len(reasons)
    if reasons:
        count = counted(len(reasons), "replay")
        step.run.progress.note(f"step {step.number}: {count} left out, which this run cannot train on: {reasons[0]}")
    return fit


def _pool(step: Step, pool: ReplaySource | None) -> ReplaySource:
    if pool is None:
        raise MixingError(
            f"step {step.number} wants {step.replays} replays per prompt, but the run has no pool for them"
        )
    return pool


async def _select(step: Step, prompts: Sequence[Prompt], held: Mapping[str, Sequence[Trajectory]]) -> Replays:
    """Choose M of each prompt's stored responses by ``replay.selection``."""
    config = step.run.config
    strategy = config.replay.selection
    stored = [(prompt, member) for prompt in prompts for member in held.get(prompt.id, ())]
    scores: Sequence[float | None] = [None] * len(stored)
    if strategy in ("most-probable", "least-probable") and stored:
        scores = (await _mean_logprobs(step, stored)).tolist()
    candidates: dict[str, list[Candidate]] = {prompt.id: [] for prompt in prompts}
    for (prompt, member), logprob in zip(stored, scores, strict=True):
        used = step.used.get(member.content_id, 0)
        candidates[prompt.id].append(Candidate.of(member, used=used, logprob=logprob))
    chosen: Replays = {}
    for prompt_id, known in candidates.items():
        picks = select(strategy, known, step.replays, prompt_id=prompt_id, seed=config.run.seed, step=step.number)
        chosen[prompt_id] = [held[prompt_id][pick] for pick in picks]
    return chosen


async def _mean_logprobs(step: Step, stored: Sequence[tuple[Prompt, Trajectory]]) -> Float64Array:
    """Return the mean log-prob per token of each response under the step's weights, ``[S]``."""
    batch = answer_batch(stored)
    step.candidate_tokens += len(batch.tokens)
    logprobs = await step.trainers.learner.score(batch)
    lengths = batch.sampled_lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    return np.add.reduceat(logprobs.astype(np.float64), starts) / lengths
