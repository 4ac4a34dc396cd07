"""A study file: arms that are compared at one compute budget, and the commands that each of them takes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rlep.config.schema import Config
from rlep.config.section import Section
from rlep.config.settings import load_config, reason, toml_text
from rlep.core.errors import ConfigError

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 +._=-]{0,60}$")]
Command = Literal["train", "collect", "sft"]
Endpoint = Annotated[str, Field(pattern="^(area|final|pass|pass@[1-9][0-9]{0,3})$")]
"""``area``: mean accuracy over compute. At the last evaluation within the budget ``final``: accuracy, ``pass``: any of its n
samples, ``pass@k``: any of k, estimated from all n."""
ENDPOINTS = ("area", "final", "pass")
"""Those that every study compares."""
Replicate = int | str
"""Seed, or base and seed as ``base/seed`` where a study has several bases."""
MOST_REPLICATES = 20
"""Of which all sign patterns are counted."""
_SHARED = ("data.", "evaluation.", "verifier.", "model.", "rollout.max_tokens", "generator.dtype")
"""Keys in which arms may not differ: the questions, and how a policy is evaluated on them."""
_SET_HERE = (
    *("run.seed", "run.name", "run.directory", "model.path", "pool.directory", "pool.url", "pool.name"),
    "evaluation.compute",
)
QUICKSTART = "quickstart"


class PhaseSpec(Section):
    """One command of an arm."""

    command: Command
    name: str = ""
    """By which later phases name it; empty: the command's."""
    model: str = ""
    """The phase whose last checkpoint it starts from; empty: the base model."""
    pool: str = ""
    """The phase that collected its pool."""
    seeds: tuple[int, ...] = ()
    """Seeds of its own, of which an arm under seed s has the one at s mod their number. What it makes is there before the arm
    begins: it is not charged to the arm. Empty: the arm's seed."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys that it overrides."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name or self.command


class ArmSpec(Section):
    """Arm of a study: a pipeline of phases from the base model."""

    name: Name
    control: bool = False
    """The other arms are compared with it."""
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Keys and their values, for the last phase: the tuning seeds choose among all combinations."""
    phase: tuple[PhaseSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known: dict[str, PhaseSpec] = {}
        for phase in self.phase:
            for role, named, commands in (
                ("model", phase.model, ("train", "sft")),
                ("pool", phase.pool, ("collect",)),
            ):
                before = known.get(named)
                if named and (before is None or before.command not in commands):
                    raise ConfigError(
                        f"arm {self.name}, phase {phase.label}: {role} = {named!r} is no earlier {' or '.join(commands)} phase"
                    )
                if before and phase.seeds and before.seeds != phase.seeds:
                    raise ConfigError(
                        f"arm {self.name}, phase {phase.label}: seeds = {list(phase.seeds)}, and {named} which it goes on from "
                        f"has {list(before.seeds)}: give both the same"
                    )
            if phase.label in known:
                raise ConfigError(f"arm {self.name} has two phases {phase.label}: give one of them a name")
            known[phase.label] = phase
            _check_keys(f"arm {self.name}, phase {phase.label}", phase.set)
        if self.phase[-1].command == "collect":
            raise ConfigError(f"arm {self.name} ends with a collection: its last phase must train")
        if self.phase[-1].seeds:
            raise ConfigError(
                f"arm {self.name}: its last phase is what is compared, and has the study's seeds, not its own"
            )
        _check_keys(f"arm {self.name}, tune", self.tune)
        return self

    @property
    def candidates(self) -> tuple[dict[str, Any], ...]:
        """The combinations that it tunes over; an empty one where it tunes nothing."""
        return tuple(dict(zip(self.tune, values, strict=True)) for values in product(*self.tune.values()))

    def with_tuned(self, values: Mapping[str, Any]) -> ArmSpec:
        """The arm with one of its candidates."""
        last = self.phase[-1].model_copy(update={"set": {**self.phase[-1].set, **values}})
        return self.model_copy(update={"tune": {}, "phase": (*self.phase[:-1], last)})


class StudySpec(Section):
    """Settings that all arms share."""

    name: Name
    directory: Path
    base: Literal["quickstart"] | tuple[Path, ...]
    """Configuration files, relative to the study's, or the quickstart's task."""
    budget: float = Field(gt=0)
    """Compute that every arm is compared at: generated + scored + 3 × trained tokens, prompts included."""
    bases: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Base models, by name, with the keys that make each (``model.path``); every arm begins with each of them under each seed.
    Empty: that of ``base``."""
    seeds: tuple[int, ...] = Field(min_length=1, max_length=MOST_REPLICATES)
    tuning_seeds: tuple[int, ...] = ()
    tune_by: Endpoint = "area"
    """Endpoint whose largest mean tuning chooses."""
    claims: tuple[Endpoint, ...] = ()
    """Endpoints that the protocol claims by, the first one first: Holm's correction is over all arms at all of them. Empty: over
    the arms at each endpoint."""
    evaluations: int = Field(0, ge=0, le=1000)
    """Equal parts of the budget, after each of which every arm's last phase is evaluated, with ``evaluation.final_samples`` at
    the budget; 0: by steps (``evaluation.every``)."""
    phase_hours: float = Field(24.0, gt=0)
    """Longest time that one phase may take."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys that all phases override."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """By which arms are compared."""
        return (*ENDPOINTS, *(claim for claim in self.claims if claim not in ENDPOINTS))

    @property
    def grid(self) -> tuple[float, ...]:
        """Compute of the ``evaluations``; the last is the budget."""
        return tuple(self.budget * part / self.evaluations for part in range(1, self.evaluations + 1))

    def replicates(self, seeds: Sequence[int]) -> tuple[Replicate, ...]:
        """Each base with each of the seeds, or the seeds."""
        return tuple(f"{base}/{seed}" for base in self.bases for seed in seeds) or tuple(seeds)

    def parts_of(self, replicate: Replicate) -> tuple[str, int]:
        """Base and seed of a replicate; the base is empty where there is one."""
        base, _, seed = str(replicate).rpartition("/")
        return base, int(seed)


class Study(Section):
    """A study file."""

    study: StudySpec
    arm: tuple[ArmSpec, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        names = [arm.name for arm in self.arm]
        seeds, tuning = self.study.seeds, self.study.tuning_seeds
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two arms are called {repeated[0]}")
        if not any(arm.control for arm in self.arm) or all(arm.control for arm in self.arm):
            raise ConfigError("a study compares arms with controls: set control = true for some arms, and not for all")
        if len(set(seeds)) < len(seeds) or len(set(tuning)) < len(tuning):
            raise ConfigError(f"seeds {list(seeds)}, tuning_seeds {list(tuning)}: one comes twice")
        if both := sorted(set(seeds) & set(tuning)):
            raise ConfigError(f"seeds {both} are used for tuning and for testing: choose others for one of them")
        tuned = [arm.name for arm in self.arm if arm.tune]
        if bool(tuned) != bool(tuning):
            raise ConfigError(
                f"arms that tune: {', '.join(tuned) or 'none'}; tuning_seeds = {list(tuning)}: set both or neither"
            )
        _check_set_here("study.set", self.study.set)
        for name, keys in self.study.bases.items():
            _check_set_here(f"study.bases.{name}", keys.keys() - {"model.path"})
        if len(self.study.bases) == 1:
            raise ConfigError("study.bases has one base: put its keys under study.set, or name a second one")
        for group in (seeds, tuning):
            if len(self.study.replicates(group)) > MOST_REPLICATES:
                raise ConfigError(
                    f"{len(self.study.bases)} bases with {len(group)} seeds: at most {MOST_REPLICATES} in all"
                )
        if len(set(self.study.claims)) < len(self.study.claims):
            raise ConfigError(f"study.claims = {list(self.study.claims)}: one comes twice")
        return self


def _check_set_here(where: str, keys: Iterable[str]) -> None:
    for key in keys:
        if key in _SET_HERE:
            raise ConfigError(f"{where}: {key} is set by the study itself")


def _check_keys(where: str, keys: Mapping[str, Any]) -> None:
    _check_set_here(where, keys)
    for key in keys:
        if key.startswith(_SHARED):
            raise ConfigError(f"{where}: arms may not differ in {key}; set it for all, under study.set")


def read_study(file: Path) -> Study:
    """A study file; paths in it are relative to it. Raises ConfigError with what is wrong."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"study file {file} cannot be read: {error}") from None
    try:
        study = Study.model_validate(tree)
    except ValidationError as error:
        lines = []
        for issue in error.errors():
            place = ".".join(map(str, issue["loc"]))  # empty where arms are compared with each other
            lines.append(f"{file}: {place}: {reason(issue)}" if place else f"{file}: {reason(issue)}")
        raise ConfigError("\n".join(lines)) from None
    if study.study.base == QUICKSTART:
        return study
    files = tuple(file.parent / one for one in study.study.base)
    return study.model_copy(update={"study": study.study.model_copy(update={"base": files})})


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One command with everything it needs; equal ones of several arms are one."""

    command: Command
    directory: Path
    """The run's."""
    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    config: Config
    charged: bool = True
    """Whether its compute is the arm's."""

    @property
    def last_model(self) -> Path:
        """The model directory that it ends with."""
        return self.directory / "checkpoints" / f"step-{self.config.run.steps:06d}" / "model"


def phases_of(
    study: StudySpec, arm: ArmSpec, replicate: Replicate, files: Sequence[Path], task: Sequence[str]
) -> list[PhasePlan]:
    """The phases of an arm, in order. ``files`` and ``task``: configuration files and overrides of the base.

    Phases that are the same command with the same settings, seed and inputs have the same directory, whatever the arm or machine;
    an arm's last phase only where both are charged for the same. Raises ConfigError where one is no valid configuration.
    """
    plans: dict[str, PhasePlan] = {}
    base, own_seed = study.parts_of(replicate)
    for phase in arm.phase:
        seed = phase.seeds[own_seed % len(phase.seeds)] if phase.seeds else own_seed
        given = {**study.set, **study.bases.get(base, {}), **phase.set}
        inputs = [plans[one].directory.name if one else "" for one in (phase.model, phase.pool)]
        identity: list[Any] = [phase.command, given, seed, *inputs]
        free = sorted(
            one.directory.name for one in plans.values() if not one.charged and one.config.run.seed == own_seed
        )
        if free and phase is arm.phase[-1]:  # another arm may have them too, and be charged for them
            identity.append({"not charged": free})
        digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=6)
        name = f"{phase.command}-{digest.hexdigest()}"
        directory = (study.directory / "phases" / f"{name}-{seed}").absolute()
        pool = (plans[phase.pool].directory if phase.pool else directory) / "pool"
        own: dict[str, Any] = {
            "run.seed": seed,
            "run.name": name,
            "run.directory": str(directory),
            "pool.directory": str(pool),
        }
        if phase.model:
            own |= {"model.path": str(plans[phase.model].last_model), "model.revision": "none"}
        overrides = [
            *task,
            *(f"{key}={toml_text(value)}" for key, value in {**given, **own}.items()),
        ]
        try:
            config = load_config(list(files), overrides)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name}, phase {phase.label}: {error}") from None
        plans[phase.label] = PhasePlan(
            phase.command, directory, tuple(files), tuple(overrides), config, not phase.seeds
        )
    return [*plans.values()]
