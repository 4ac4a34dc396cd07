"""Inputs of a command, read before it starts anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, cast

from rlep.check.environment_starts import check_same_rows, tools_of
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.prompts_shown import read_prompts
from rlep.config.schema import Config, ModelConfig
from rlep.core.errors import ModelError, RlepError
from rlep.core.progress import StartPhase
from rlep.core.types import Prompt
from rlep.data.prompts import PromptSet
from rlep.engines.dialogue import Dialogue
from rlep.engines.tokenizer import Tokenizer, load_tokenizer, vocabulary_size
from rlep.hub.resolve import model_directory
from rlep.plan.model_shape import ModelShape, read_shape
from rlep.services.environment.digest import environment_digest
from rlep.services.verifier.grader import grader_of
from rlep.services.worker.source import code_versions

Command = Literal["train", "sft", "collect", "evaluate"]
T = TypeVar("T")

FINGERPRINT_BYTES = 2**20


def grader_digest(config: Config) -> str:
    """Name what decides the rewards of a config, with the versions of its code. Raises ``ConfigError``."""
    factory = config.environment.factory
    played = code_versions(factory, "environment.factory") if factory else {}
    return ", ".join([grader_of(config.verifier), *(f"{name} {version}" for name, version in played.items())])


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a command, read before it starts anything."""

    tokenizer: Tokenizer
    vocabulary: int | None
    """Rows of the model's embedding."""
    model_digest: str
    train: PromptSet | None
    evaluation: PromptSet | None
    teacher_digest: str = ""
    """Of ``loss.teacher``; empty without."""
    environment_digest: str = ""
    """Of ``environment.factory``; empty without."""
    grader_digest: str = ""
    """Names the verifier and the environment with the versions of their code."""
    dialogue: Dialogue | None = None
    """Turns of its episodes in token ids; None without."""

    @property
    def held_out(self) -> tuple[Prompt, ...]:
        """Held-out prompts; none without evaluation files."""
        return self.evaluation.prompts if self.evaluation is not None else ()


class Subject:
    """A configuration and what it names, each read once.

    The first look at something that cannot be read raises its error; every later one raises ``CheckSkipped``.
    """

    def __init__(
        self, config: Config, command: Command = "train", *, weights: bool = True, phase: StartPhase | None = None
    ) -> None:
        """``command`` decides what is read and which roles there are; without ``weights`` a model of the hub is its texts.

        ``phase`` shows what takes long.
        """
        self.config, self._weights, self._phase = config, weights, phase
        self.command: Command = command
        self._values: dict[str, object] = {}

    @property
    def learns(self) -> bool:
        """The command starts a learner."""
        return self.command in ("train", "sft")

    @property
    def model(self) -> Path:
        """The model's directory on this machine."""
        return self._once("model.path", lambda: model_directory(self.config.model, weights=self._weights))

    @property
    def teacher(self) -> Path | None:
        """The teacher's directory on this machine, for a command that asks it."""
        models = self.config.models if self.command == "train" else ()
        return self._once("loss.teacher", lambda: self._directory(models[1])) if models[1:] else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, whose prompts offer the environment's tools."""
        plain = self._once("the tokenizer", lambda: load_tokenizer(self.model, self.config.model))
        environment = self.config.environment
        if not environment.factory:
            return plain
        return self._once("environment.factory", lambda: plain.with_tools(tools_of(environment)))

    @property
    def dialogue(self) -> Dialogue | None:
        """Turns of the policy and its environment in token ids; None where there is no environment."""
        most = self.config.environment.observation_tokens
        if not self.config.environment.factory:
            return None
        return self._once("turns of episodes", lambda: Dialogue(self.tokenizer, observation_tokens=most))

    @property
    def shape(self) -> ModelShape | None:
        """The model's shape; None for a family that has another: vLLM serves more than the plan knows."""
        return self._once("the model", self._shape)

    @property
    def train(self) -> PromptSet | None:
        """The training questions; None for a command that trains on none."""
        if self.command == "evaluate":
            return None
        return self._once("data.train", lambda: self._prompts(self.config.data.train_paths, training=True))

    @property
    def evaluation(self) -> PromptSet | None:
        """The held-out questions; None without files."""
        files = self.config.data.evaluation
        return self._once("data.evaluation", lambda: self._prompts(files, training=False)) if files else None

    def inputs(self) -> Inputs:
        """Return what a command needs. Raises ``ModelError`` or ``DataError`` saying what to fix."""
        rows, digest = vocabulary_size(self.model), fingerprint(self.model)
        taught = fingerprint(self.teacher) if self.teacher is not None else ""
        digest_of = environment_digest(self.config.environment.factory)
        if digest_of and self.train is not None and self.evaluation is not None:
            check_same_rows(self.train.prompts, self.evaluation.prompts)
        grader = grader_digest(self.config)
        return Inputs(
            self.tokenizer, rows, digest, self.train, self.evaluation, taught, digest_of, grader, self.dialogue
        )

    def _directory(self, teacher: ModelConfig) -> Path:
        path = model_directory(teacher, weights=self._weights)
        if not path.is_dir():
            raise ModelError(f"loss.teacher = {path}: no such directory, nor a name of the form ORG/NAME of the hub")
        return path

    def _shape(self) -> ModelShape | None:
        try:
            return shape_in([self.model, *([] if self.teacher is None else [self.teacher])])
        except ModelError:
            return None

    def _prompts(self, files: Sequence[Path], *, training: bool) -> PromptSet:
        return read_prompts(self.config, files, self.tokenizer, training=training, phase=self._phase)

    def _once(self, what: str, read: Callable[[], T]) -> T:
        if what not in self._values:
            try:
                self._values[what] = read()
            except RlepError:
                self._values[what] = CheckSkipped(f"{what} cannot be read")
                raise
        value = self._values[what]
        if isinstance(value, CheckSkipped):
            raise value
        return cast("T", value)


def shape_of(config: Config) -> ModelShape:
    """Return the shape of a config's model, and of its teacher with it. Raises ``ModelError`` naming what cannot be read."""
    return shape_in([model_directory(model, weights=False) for model in config.models])


def shape_in(directories: Sequence[Path]) -> ModelShape:
    """Return the shape of the model in the first directory, with that in the second, if there is one, as its teacher."""
    own, *others = map(read_shape, directories)
    return replace(own, teacher=others[0] if others else None)


Look = Callable[[Subject], Iterator[Finding]]
"""One check: its findings; an error that a run would end with is raised."""


def fingerprint(model: Path) -> str:
    """Names a model directory's weights: a hash of its config and of the size and both ends of every weight file."""
    digest = hashlib.blake2b(digest_size=16, person=b"rlep.model")
    weights = sorted(model.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{model}: no *.safetensors weights (other formats are not read)")
    for file in [model / "config.json", *weights]:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(FINGERPRINT_BYTES))
            stream.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(stream.read(FINGERPRINT_BYTES))
    return digest.hexdigest()
