"""What ``rlep evaluate`` evaluates: a model directory, or the best or last checkpoint of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlep.config.schema import Config
from rlep.config.settings import load_config, parse_stored_config
from rlep.core.errors import CheckpointError, ConfigError
from rlep.driver.checkpoint import choose_checkpoint


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model, and the config that it is evaluated with."""

    path: Path
    config: Config
    data: tuple[Path, ...]
    """Held-out files: those given, else ``data.evaluation``."""
    notes: tuple[str, ...]
    """What the user is told: which checkpoint was taken, and which held-out file is the training file."""


def evaluated_model(
    directory: Path, data: Sequence[Path], files: Sequence[Path], overrides: Sequence[str]
) -> EvaluatedModel:
    """The model in ``directory``; of a run, its best checkpoint if it kept one, else its last.

    A run is evaluated with its own config unless config files are given; overrides apply to either.

    Raises:
        ConfigError: a config that cannot be used, or no held-out file.
        CheckpointError: the run has no intact checkpoint.
    """
    stored = directory / "config.json"
    is_run = stored.is_file() and (directory / "checkpoints").is_dir()
    own = _stored(stored, overrides) if is_run else None
    config = own if own is not None and not files else load_config(files, overrides)
    held_out = tuple(data) or config.data.evaluation
    if not held_out:
        raise ConfigError("nothing to evaluate on: name held-out files, or set data.evaluation")
    train = (own or config).data.train
    notes = [
        f"{file} is the training file: this accuracy says nothing about unseen questions"
        for file in held_out
        if file.exists() and train.exists() and file.samefile(train)
    ]
    if own is None:
        return EvaluatedModel(directory, config, held_out, tuple(notes))
    chosen, why = choose_checkpoint(directory / "checkpoints", own.checkpoint.best)
    return EvaluatedModel(chosen.model, config, held_out, (f"{why} of {directory}: step {chosen.state.step}", *notes))


def _stored(file: Path, overrides: Sequence[str]) -> Config:
    try:
        tree = json.loads(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    return parse_stored_config(tree, file, overrides)
