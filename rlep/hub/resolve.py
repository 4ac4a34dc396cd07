"""Names of models and data sets, resolved once before a command starts anything: each is pinned to a commit and downloaded.

A pinned config says the same on every machine and for ever: it is what a run records, and what a continued run is held against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

from rlep.config.schema import Config, ModelConfig
from rlep.core.errors import ConfigError, ModelError
from rlep.core.hub_names import hub_data, is_commit, is_model_id
from rlep.core.progress import StartPhase
from rlep.hub.data_files import data_files, pin_data
from rlep.hub.repository import DOUBLE, NESTED, Repository, chosen

TEXTS = ("*.json", "*.jinja", "merges.txt", "tokenizer.model")
"""Config, tokenizer and template."""
WEIGHTS = ("*.safetensors",)
INDEX = "model.safetensors.index.json"
"""File of each weight, where there are several files."""


def pin(config: Config) -> Config:
    """Return ``config`` with the commits that its names stand for now; nothing but names is asked for.

    Raises ``ModelError`` or ``DataError`` saying why a name stands for nothing, ``ConfigError`` for a directory's revision.
    """
    data = config.data
    keys = ("model.revision", "loss.teacher_revision")
    revisions = [*(_pinned(model, key) for model, key in zip(config.models, keys, strict=False)), None]
    train = tuple(one.model_copy(update={"path": pin_data(one.path)}) for one in data.train)
    sets = {"train": train, "evaluation": tuple(map(pin_data, data.evaluation))}
    return config.with_values(model={"revision": revisions[0]}, loss={"teacher_revision": revisions[1]}, data=sets)


def resolve(
    config: Config,
    note: Callable[[str], None],
    *,
    check: Callable[[Config], None] | None = None,
    phase: StartPhase | None = None,
    learns: bool = False,
) -> Config:
    """Return ``config`` pinned, with all that it names on this machine; raises as ``pin``.

    ``check`` is shown the pinned config, and may refuse it before anything is downloaded; downloads move bars of ``phase``.
    ``learns``: a teacher is needed.
    """
    pinned = pin(config)
    if check is not None:
        check(pinned)
    for what, model in zip(("model", "teacher") if learns else ("model",), pinned.models, strict=False):
        if model.revision:
            note(f"{what}: {model_text(model)}")
            model_directory(model, phase=phase)
    for path in (*pinned.data.train_paths, *pinned.data.evaluation):
        if hub_data(path):
            note(f"data: {path}")
            data_files(path, phase=phase)
    return pinned


def model_directory(model: ModelConfig, *, weights: bool = True, phase: StartPhase | None = None) -> Path:
    """Return the model's directory on this machine; one of the hub is downloaded unless it is here.

    Without ``weights`` its texts suffice: a tokenizer is at hand without gigabytes.
    """
    revision = _pinned(model)
    if revision is None:
        return model.path
    return download_model(str(model.path), revision, weights=weights, phase=phase)


def model_text(model: ModelConfig) -> str:
    """Return the model as a line of a report has it: a directory, or an id with its commit."""
    return f"{model.path} of the hub, commit {model.revision}" if model.revision else str(model.path)


def download_model(name: str, commit: str, *, weights: bool = True, phase: StartPhase | None = None) -> Path:
    """Return the directory of a model at a commit. Raises ``ModelError`` saying why there is none."""
    repository = Repository("model", name)
    left_out = [*NESTED, *DOUBLE]
    if not weights:
        return repository.snapshot(commit, TEXTS, left_out)
    files = repository.files(commit)
    there = chosen(files, WEIGHTS, left_out)
    if not there:
        raise ModelError(f"{name} at {commit} has no *.safetensors weights; other formats are not read")
    if INDEX in files:
        check_index(repository.snapshot(commit, TEXTS, left_out), there)
    return repository.snapshot(commit, [*TEXTS, *WEIGHTS], left_out, phase=phase)


def check_index(directory: Path, there: Collection[str]) -> None:
    """Raise ``ModelError`` where a model's weights are to be in files that are not ``there``, in the directory or on the hub."""
    index = directory / INDEX
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read: {error!r}") from None
    if lacking := sorted(named.difference(there)):
        raise ModelError(f"{index} names {lacking[0]}, which is not there: the model is not whole")


def _pinned(model: ModelConfig, key: str = "model.revision") -> str | None:
    """Return the commit of a model of the hub; None for a directory, which wins over an id."""
    if is_model_id(model.path, asked=model.revision is not None):
        return (
            model.revision if is_commit(model.revision) else Repository("model", str(model.path)).commit(model.revision)
        )
    if model.revision is not None:
        raise ConfigError(
            f"{key} = {model.revision}: {model.path} is a directory, or no ORG/NAME of the hub, and has no revisions"
        )
    return None
