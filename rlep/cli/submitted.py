"""Checks of a command that is to be submitted, before anything is uploaded."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

import typer

from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.core.hub_names import hub_data, is_model_id

CHECKED = ("train", "collect", "sft", "evaluate")
GIT_S = 60.0
"""Seconds that git has to look at ``.gitignore``."""
LOCAL = ("localhost", "127.0.0.1", "::1")


def check_submitted(app: typer.Typer, arguments: Sequence[str], working_dir: Path, address: str) -> None:
    """Refuse a command whose words, config, model or data are wrong.

    Relative paths are looked up in ``working_dir``, which the job runs in a copy of. Absolute ones are those of the
    cluster's machines: they are looked up where ``address`` is this machine's.

    Raises ``ConfigError`` naming the key or path, and what the command line raises for wrong words.
    """
    commands = vars(typer.main.get_command(app))["commands"]
    if arguments and arguments[0] not in commands:
        close = get_close_matches(arguments[0], commands, n=1)
        raise ConfigError(f"rlep has no command {arguments[0]}" + (f"; did you mean {close[0]}?" if close else ""))
    if not arguments or arguments[0] not in CHECKED:
        return
    command = commands[arguments[0]]
    words = command.make_context(arguments[0], list(arguments[1:])).params
    files = words.get("files") or words.get("config") or []
    config = load_config([working_dir / file for file in files], words.get("overrides") or ())
    named = _paths(config)
    if arguments[0] == "evaluate":
        named = {
            "MODEL": [words["model"]],
            "model.template_file": named["model.template_file"],
            "DATA": words["data"] or (),
        }
    paths = {
        name: [path for path in found if not _of_hub(name, path, config, working_dir)] for name, found in named.items()
    }
    if arguments[0] != "evaluate" and not config.run.directory.is_absolute():
        raise ConfigError(
            f"run.directory = {config.run.directory} is relative: a job runs in a copy of {working_dir.absolute()}, which Ray "
            "removes. Give an absolute path that the cluster's machines share"
        )
    _check_taken_along(working_dir, [*files, *(path for found in paths.values() for path in found)])
    local = (urlsplit(address).hostname or "") in LOCAL
    for name, found in paths.items():
        for path in found:
            if not (working_dir / path).exists() and (local or not path.is_absolute()):
                where = "" if path.is_absolute() else f" in {working_dir.absolute()}, which is copied to the job"
                raise ConfigError(f"{name} = {path}: there is no such path{where}")


def _check_taken_along(working_dir: Path, paths: Sequence[Path]) -> None:
    """Refuse relative paths that git ignores: Ray leaves them out of the job's copy."""
    relative = [str(path) for path in paths if not path.is_absolute()]
    command = ["git", "-C", str(working_dir), "check-ignore", "--no-index", *relative]
    try:
        ignored = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_S, check=False
        ).stdout.splitlines()
    except (FileNotFoundError, subprocess.TimeoutExpired):  # without git
        return
    if relative and ignored:
        raise ConfigError(
            f"{ignored[0]} is ignored by git, so that a job's copy of {working_dir.absolute()} does not have it: take it out of "
            ".gitignore, or give an absolute path that the cluster's machines have"
        )


def _of_hub(name: str, path: Path, config: Config, within: Path) -> bool:
    """Tell whether the job looks a path up on the hub."""
    if name.startswith("data") or name == "DATA":
        return hub_data(path) is not None
    return name != "model.template_file" and is_model_id(path, asked=config.model.revision is not None, within=within)


def _paths(config: Config) -> dict[str, Sequence[Path]]:
    data, model = config.data, config.model
    template = [] if model.template_file is None else [model.template_file]
    return {
        "model.path": [model.path],
        "model.template_file": template,
        "data.train": data.train_paths,
        "data.evaluation": data.evaluation,
    }
