"""A study from its file to its results: tuning first, then every arm under every seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from rlep.config.schema import Config
from rlep.core.errors import ConfigError, DataError
from rlep.core.files import write_whole
from rlep.study.study_plan import ArmSpec, PhasePlan, Replicate, Study, StudySpec, phases_of
from rlep.study.study_report import Found, Tried, endpoint_of
from rlep.study.study_results import ArmRun, arm_figures
from rlep.study.study_runner import Failed, PhaseRunner, Pipeline, Say, run_pipelines

PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Base:
    """Path of the study's ``base`` on this machine."""

    files: tuple[Path, ...]
    overrides: tuple[str, ...] = ()


NameGrader = Callable[[Config], str]
"""Names what decides the rewards of a configuration, as a run's manifest does."""


def conduct(
    study: Study, base: Base, run: PhaseRunner, *, parallel: int, say: Say, name_grader: NameGrader = lambda _: ""
) -> Found:
    """Run what is not complete; see ``found_in`` for the rest. Raises ConfigError before anything starts."""
    spec = study.study
    phases: list[tuple[str, list[PhasePlan]]] = []
    for arm in study.arm:  # every configuration is valid, whatever tuning will choose
        for values, replicate in product(arm.candidates, spec.replicates(spec.seeds[:1])):
            phases.append((arm.name, phases_of(spec, arm.with_tuned(values), replicate, base.files, base.overrides)))
            _check_samples(study, phases[-1][1][-1])
    _check_ends(phases)
    begun = [plans for _, plans in phases] + [*_tuning(study, base).values()]
    _check_graders([plan for plans in begun for plan in plans], name_grader)
    keep_plan(study, base)
    budget = study.study.budget
    if study.study.tuning_seeds:
        run_pipelines(_tuning(study, base), run, budget=budget, parallel=parallel, say=say)
    arms = _chosen(study, _tried(study, base)[0])[0]
    failed = run_pipelines(_testing(study, arms, base), run, budget=budget, parallel=parallel, say=say)
    return found_in(study, base, failed)


def _check_samples(study: Study, last: PhasePlan) -> None:
    rule, spec = last.config.evaluation, study.study
    samples = (rule.final_samples or rule.samples) if spec.evaluations else rule.samples
    for endpoint in (*spec.claims, spec.tune_by):
        if int(endpoint.partition("@")[2] or 1) > samples:
            key = "evaluation.final_samples" if spec.evaluations else "evaluation.samples"
            raise ConfigError(f"{endpoint} needs as many samples: {key} is {samples}; set it under study.set")


def _check_ends(arms: Sequence[tuple[str, Sequence[PhasePlan]]]) -> None:
    """Raise ConfigError where all of an arm, which ends at the budget, is an earlier phase of another, which goes on."""
    ends = {plans[-1].directory: name for name, plans in arms}
    for name, plans in arms:
        if found := [ends[plan.directory] for plan in plans[:-1] if plan.directory in ends]:
            raise ConfigError(
                f"a phase of arm {name} is all of arm {found[0]}, which ends at the budget: give it another run.steps"
            )


def _check_graders(plans: Sequence[PhasePlan], name_grader: NameGrader) -> None:
    """Raise ConfigError where a phase that has begun was graded otherwise than the others would be now."""
    for plan in plans:
        manifest = plan.directory / "manifest.json"
        try:
            before = str(json.loads(manifest.read_text()).get("grader_digest", "")) if manifest.exists() else ""
        except (OSError, ValueError, AttributeError):  # its own run says so
            continue
        if (
            before
            and (now := name_grader(plan.config))
            and before != now
            and "grader" not in plan.config.checkpoint.accept
        ):
            raise ConfigError(
                f"{plan.directory} was graded by {before}, now the grader is {now}: arms would be compared by two graders; set "
                "study.directory to a new one, or restore the grader"
            )


def keep_plan(study: Study, base: Base) -> None:
    """Note in the study's directory what it is. Raises ConfigError where that is another study's, or its base has changed.

    Where the base's files lie may change, as from one working directory to the next.
    """
    path = study.study.directory / PLAN
    digests = [hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() for file in base.files]
    now = study.model_dump(mode="json") | {"content of base": digests}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(now, indent=1) + "\n")
        return
    spec = StudySpec.model_fields
    grown = {key: spec[key].default for key in ("tune_by", "evaluations")}  # which an earlier version did not write
    try:
        stored = json.loads(path.read_text())
        before, after = _flat({**stored, "study": grown | stored["study"]}), _flat(now)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} does not say what study this is: {error!r}; delete it if the directory is this study's, and it is "
            "written anew"
        ) from None
    changed = [
        f"{key}: {json.dumps(before.get(key))} there, {json.dumps(value)} here"
        for key, value in (after | dict.fromkeys(before.keys() - after.keys())).items()
        if before.get(key) != value and not key.startswith("study.base.")
    ]
    if changed:
        raise ConfigError(
            f"{path.parent} is the directory of another study: {'; '.join(changed[:5])}. Set study.directory to a new one"
        )


def found_in(study: Study, base: Base, failed: Mapping[Pipeline, Failed] | None = None) -> Found:
    """Read the study's files; an arm without a complete result under a seed is among the failed."""
    tried, notes = _tried(study, base)
    arms, tuned = _chosen(study, tried)
    runs: dict[Pipeline, ArmRun] = {}
    missing = dict(failed or {})
    ready = {arm.name for arm in arms}
    for arm, seed in product(study.arm, study.study.replicates(study.study.seeds)):
        if arm.name not in ready:
            why = f"no value of {' and '.join(arm.tune)} has a result under every tuning seed"
            missing[arm.name, seed] = Failed("tuning", why)
    for pipeline, plans in _testing(study, arms, base).items():
        if pipeline in missing:
            continue
        try:
            runs[pipeline] = arm_figures(plans, study.study.budget, study.study.grid)
        except (DataError, OSError) as error:
            missing[pipeline] = Failed(plans[-1].command, str(error))
    return Found(study, runs, missing, tuned, tried, notes)


def _shown(values: Mapping[str, Any]) -> Any:
    """A candidate as it is named: its value, or all of them by their keys."""
    return next(iter(values.values())) if len(values) == 1 else dict(values)


def _tuning(study: Study, base: Base) -> dict[Pipeline, list[PhasePlan]]:
    spec = study.study
    return {
        (f"{arm.name} {json.dumps(_shown(values))}", seed): phases_of(
            spec, arm.with_tuned(values), seed, base.files, base.overrides
        )
        for arm in study.arm
        if arm.tune
        for values, seed in product(arm.candidates, spec.replicates(spec.tuning_seeds))
    }


def _tried(study: Study, base: Base) -> tuple[list[Tried], list[str]]:
    """The values that have a result under every tuning seed, and a sentence on each other one."""
    plans, tried, notes, spec = _tuning(study, base), list[Tried](), list[str](), study.study
    candidates = [(arm.name, values) for arm in study.arm if arm.tune for values in arm.candidates]
    for arm, values in candidates:
        name, runs = f"{arm} {json.dumps(_shown(values))}", dict[Replicate, ArmRun]()
        for seed in spec.replicates(spec.tuning_seeds):
            try:
                runs[seed] = arm_figures(plans[name, seed], spec.budget, spec.grid)
            except (DataError, OSError) as error:
                notes.append(f"{name}, tuning seed {seed}: no result, so this value was not chosen: {error}")
                break
        else:
            tried.append(Tried(arm, values, runs))
    return tried, notes


def _chosen(study: Study, tried: Sequence[Tried]) -> tuple[list[ArmSpec], dict[str, Any]]:
    """The arms as they are tested, and the values that tuning chose, by the largest mean of ``tune_by``.

    Arms that no tuning succeeded for are left out.
    """
    arms, tuned, spec = list[ArmSpec](), dict[str, Any](), study.study

    def score(one: Tried) -> float:
        return float(np.mean([endpoint_of(run, spec.tune_by, spec.budget).mean() for run in one.runs.values()]))

    for arm in study.arm:
        best = max((one for one in tried if one.arm == arm.name), key=score, default=None)
        if best is not None:
            tuned[arm.name] = _shown(best.values)
            arms.append(arm.with_tuned(best.values))
        elif not arm.tune:
            arms.append(arm.with_tuned({}))
    return arms, tuned


def _testing(study: Study, arms: Sequence[ArmSpec], base: Base) -> dict[Pipeline, list[PhasePlan]]:
    spec = study.study
    return {
        (arm.name, seed): phases_of(spec, arm, seed, base.files, base.overrides)
        for seed, arm in product(spec.replicates(spec.seeds), arms)
    }


def _flat(tree: object, prefix: str = "") -> dict[str, Any]:
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if parts is None:
        return {prefix: tree}
    return {key: value for name, part in parts for key, value in _flat(part, f"{prefix}.{name}".strip(".")).items()}
