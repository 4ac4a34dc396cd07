"""``rlep plan``: reads what there is of a config's inputs, and prints what a run will do in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rlep.check.data_checks import check_stated, check_stated_teacher
from rlep.check.fit_checks import memory_here, missing_cpus
from rlep.check.inputs import Subject, shape_in
from rlep.check.machine import GPUS_REMEDY, gpus_here
from rlep.check.pool_place import pool_exists, pool_place
from rlep.check.prompts_shown import wanted_of
from rlep.config.schema import Config
from rlep.core.errors import HubAway
from rlep.core.hub_names import hub_data
from rlep.core.plural import counted, sized
from rlep.data.prompts import PromptSet, load_prompts
from rlep.hub.data_files import data_files
from rlep.plan.model_shape import ModelShape, width_of
from rlep.plan.run_plan import Known, PoolCoverage, RolePlan, RunPlan, read_collection
from rlep.services.pool.rpc.places import served


def read_known(config: Config) -> Known:
    """Model, data and pool, as far as they are there; a missing one is planned around and named.

    Raises ``ModelError`` or ``DataError`` for a directory without a model, for a name that the hub does not know, and for a
    model that ``rlep check`` refuses by its ``config.json``.
    """
    missing: list[str] = []
    subject = Subject(config, weights=False)
    there = _model_there(subject, missing)
    shape = _shape(subject, missing) if there else None
    train = _prompts(subject, config.data.train_paths, missing, (lambda: subject.train) if there else None)
    evaluation = _prompts(subject, config.data.evaluation, missing, (lambda: subject.evaluation) if there else None)
    short, counts = gpus_here(config)
    return Known(
        data=train.report if train else None,
        prompt_tokens=float(np.mean([len(p.tokens) for p in train.prompts])) if train and there else None,
        evaluation_questions=len(evaluation) if evaluation else (None if config.data.evaluation else 0),
        model=shape,
        pool=_pool(config, train, missing) if config.replay.count and config.replay.source != "live" else None,
        missing=tuple(missing),
        missing_cpus=missing_cpus(config),
        missing_gpus=f"GPUs: {counts}; {GPUS_REMEDY}" if short else "",
        host_bytes=memory_here(config),
    )


def _model_there(subject: Subject, missing: list[str]) -> bool:
    """Tell whether the model's texts are at hand, which suffice for a plan."""
    try:
        why = "" if subject.model.is_dir() else "no such directory"
    except HubAway as error:
        why = str(error)
    if why:
        missing.append(f"model.path = {subject.config.model.path}: {why}; planned without memory and prompt lengths")
    return not why


def _shape(subject: Subject, missing: list[str]) -> ModelShape:
    try:
        teacher = subject.teacher
    except HubAway as error:
        taught, teacher = subject.config.loss.teacher, None
        missing.append(f"loss.teacher = {taught}: {error}; planned without the teacher's memory")
    check_stated(subject)
    if teacher is not None:
        check_stated_teacher(subject.config, teacher)
    return shape_in([subject.model, *([] if teacher is None else [teacher])])


def _prompts(
    subject: Subject, paths: Sequence[Path], missing: list[str], read: Callable[[], PromptSet | None] | None
) -> PromptSet | None:
    absent = [str(path) for path in paths if not hub_data(path) and not path.exists()]
    for path in paths:
        try:
            data_files(path)
        except HubAway as error:
            missing.append(f"{error}; planned without its questions")
            return None
    if absent:
        missing.append(f"dataset {', '.join(absent)}: no such file; planned without its questions")
        return None
    if read is None:  # without a model questions can be counted, their tokens cannot
        if not paths:
            return None
        most = subject.config.data.max_bad_rows
        return load_prompts(
            paths,
            encode=lambda _: np.empty(0, np.int32),
            max_tokens=1,
            max_bad_rows=most,
            wanted=wanted_of(subject.config),
        )
    return read()


def _pool(config: Config, train: PromptSet | None, missing: list[str]) -> PoolCoverage | None:
    if config.pool.url is not None:
        missing.append("pool.url is not asked; `rlep pool stats` asks it")
        return None
    directory = config.pool_directory
    collection = directory.parent / "collection.json"
    if collection.is_file():
        return read_collection(collection)
    if not pool_exists(config):  # opening it would make one
        missing.append(f"pool {directory}: no pool there; `rlep collect` or `rlep pool import` fills it")
        return None
    with served(pool_place(config), deadline=config.pool.deadline_s) as pool:
        pool.open(read_only=True)
        held = {prompt: len(ids) for prompt, ids in pool.contents().items()}
    questions = [prompt.id for prompt in train.prompts] if train else list(held)
    return PoolCoverage(f"pool {config.pool.name} in {directory}", Counter(held.get(prompt, 0) for prompt in questions))


def lines(plan: RunPlan, config: Config) -> list[tuple[str, str]]:
    """(what, value) in the order of a step."""
    found = [("training data", str(plan.data) if plan.data else "not there")]
    found += _step_lines(plan, config) + _replay_lines(plan) + _evaluation_lines(plan)
    found += _memory_lines(plan, config)
    found += [(f"{role.role}s", f"{counted(role.actors, 'actor')}: {_devices(role)}") for role in plan.roles]
    return [*found, ("cluster", _devices(plan))]


def _devices(part: RunPlan | RolePlan) -> str:
    cpus, gpus = ("" if count == 1 else "s" for count in (part.cpus, part.gpus))
    return f"{part.cpus:g} CPU{cpus}, {part.gpus:g} GPU{gpus}"


def _step_lines(plan: RunPlan, config: Config) -> list[tuple[str, str]]:
    step = plan.step
    epoch = "" if step.steps_per_epoch is None else f", {step.steps_per_epoch:,} an epoch"
    found = [
        ("steps", f"{step.steps:,}{epoch}"),
        (
            "groups a step",
            f"{step.groups:,} of {counted(step.fresh, 'fresh response')} and {_replays_text(step.replays, config)}",
        ),
        ("sequences a step", f"{step.sequences:,}"),
        (
            "optimizer updates",
            f"{counted(step.updates, 'update')} of {counted(step.prompts_per_update, 'prompt')} "
            f"({counted(step.sequences_per_update, 'sequence')})",
        ),
        (
            "tokens a step",
            f"{step.tokens_expected:,} if responses take a third of the limit, {step.tokens_worst:,} at most",
        ),
    ]
    if config.rollout.dynamic_sampling:
        found.append(("responses sampled", f"up to {step.sampled_at_most:,} a step (dynamic sampling)"))
    return found


def _replays_text(replays: int, config: Config) -> str:
    falling = ", falling to 0" if config.replay.count and config.replay.schedule == "linear" else ""
    return f"{'up to ' if replays else ''}{counted(replays, 'replay')}{falling}"


def _replay_lines(plan: RunPlan) -> list[tuple[str, str]]:
    replay = plan.replay
    if replay is None:
        return []
    found = [("replays, full pool", f"{100 * replay.share_full:.1f} % of the sequences")]
    if replay.share_expected is not None and replay.questions is not None:
        found.append(("replays, this pool", f"{100 * replay.share_expected:.1f} %, {replay.per_group:.2f} a group"))
        found.append(
            ("pool coverage", f"{replay.eligible:,} of {counted(replay.questions, 'question')} ({replay.source})")
        )
    return found


def _evaluation_lines(plan: RunPlan) -> list[tuple[str, str]]:
    evaluation = plan.evaluation
    if not evaluation.times:
        return [("evaluation", "none (data.evaluation is empty)")]
    if evaluation.samples is None or evaluation.questions is None:
        return [
            (
                "evaluation",
                f"{counted(evaluation.times, 'time')}, {counted(evaluation.samples_each, 'response')} a question",
            )
        ]
    return [
        (
            "evaluation",
            f"{counted(evaluation.times, 'time')} {counted(evaluation.questions, 'question')}, "
            f"{counted(evaluation.samples, 'response')} in all",
        )
    ]


def _memory_lines(plan: RunPlan, config: Config) -> list[tuple[str, str]]:
    rank, memory, host, fit = plan.learner, plan.memory, plan.host, plan.fit
    if rank is None or memory is None or host is None or fit is None:
        return []
    other = "teacher" if config.loss.teacher else "base model"
    ranks = "whole" if config.learner.unsharded_gradients else f"/ {counted(config.learner.ranks, 'rank')}"
    state, trained = "12 bytes a parameter", "a parameter"
    if config.learner.lora_rank:
        trained = "an adapter's parameter"
        state = f"{width_of(config.learner.compute_dtype)} bytes a frozen parameter, 12 {trained}"
    found = [
        ("parameters", f"{memory.parameters:,}"),
        ("learner, a rank", f"{sized(rank.peak_bytes)} at the peak"),
        (
            "  weights, Adam",
            f"{sized(rank.state_bytes)} ({state} / {counted(config.learner.ranks, 'rank')})",
        ),
        ("  gradients", f"{sized(rank.gradient_bytes)} (4 bytes {trained} {ranks})"),
        ("  copy computed with", sized(rank.copy_bytes)),
        *([(f"  {other} for the KL", sized(rank.reference_bytes))] if rank.reference_bytes else []),
        ("  activations", sized(rank.activation_bytes)),
        ("  logits and buffers", sized(rank.work_bytes)),
        *([("  of it on the host", sized(rank.host_bytes))] if config.learner.gpus and rank.host_bytes else []),
        ("KV cache", f"{memory.kv_token:,} bytes a token, {sized(memory.kv_sequence)} a longest sequence"),
        ("KV cache, a generator", f"{sized(memory.kv_cache)}: {memory.kv_sequences:,} longest sequences"),
        ("weight update", sized(memory.weight_update)),
        ("checkpoints", f"{host.checkpoints} of {sized(host.checkpoint_bytes)} on disk at once"),
    ]
    if config.learner.gpus:
        text = f"{sized(host.memory_bytes)} of all actors while a checkpoint is written"
        found += [("host memory", text), ("  in /dev/shm", sized(host.published_bytes))]
    if config.cluster.placement == "colocated" and config.learner.gpus:
        found += [
            ("a shared GPU", f"{sized(max(fit.generator_bytes, fit.learner_bytes))} at most"),
            (
                "  while generating",
                f"{sized(fit.generator_bytes)}, and {sized(rank.asleep_bytes)} of the rank on the host",
            ),
            ("  while training", sized(fit.learner_bytes)),
        ]
    return found
