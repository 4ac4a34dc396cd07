"""``rlep push``: the model of a run on the Hugging Face hub, with a card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.core.errors import ConfigError
from rlep.core.versions import check_versions

if TYPE_CHECKING:
    from rlep.config.schema import Config

Public = Annotated[bool, typer.Option("--public", help="Make a new repository public; it is private otherwise.")]

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""Files of an earlier push that a later one replaces."""
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""Files of a model: weights, config, tokenizer, templates. Nothing else is uploaded."""


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory: its best or last checkpoint.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Model repository on the hub.")],
    *,
    public: Public = False,
) -> None:
    """Upload a run's model to the Hugging Face hub, with a card of base model, data, method, settings and evaluations.

    The run may go on meanwhile. A push of what is there already changes nothing.
    """
    check_versions()
    from rlep.cli.cards import files_below, model_card
    from rlep.core.jsonl import read_lines
    from rlep.driver.checkpoint import choose_checkpoint
    from rlep.driver.stored_run import stored_config
    from rlep.hub.repository import Repository

    if not (run / "checkpoints").is_dir():
        raise ConfigError(f"{run} is no directory of a training run: it has no checkpoints")
    config = stored_config(run)
    chosen, why = choose_checkpoint(run / "checkpoints", config.checkpoint.best)
    step, log = chosen.state.step, run / "evaluations.jsonl"
    evaluated = (
        [row for row in read_lines(log) if row["step"] == step] if log.is_file() and not log.is_symlink() else []
    )
    hub, card = Repository("model", repository), str(model_card(repository, config, step, evaluated)).encode()
    with tempfile.TemporaryDirectory(prefix=".push-", dir=run) as home:  # a run that goes on removes checkpoints
        _take_model(run, chosen.model, Path(home))
        files = files_below(Path(home)) | _own_template(run, config, Path(home)) | {"README.md": card}
        commit = hub.push(files, WEIGHTS, f"Step {step}", public=public)
    typer.echo(f"{why} of {run}, step {step}, in {repository}, commit {commit}")


def _take_model(run: Path, model: Path, home: Path) -> None:
    """Put the files of a run's model into ``home``. Raises ``ConfigError`` for a link: it may lead to any file of the user's."""
    from rlep.cli.cards import link_file

    folders = [place for place in (model, *model.parents) if run in place.parents]
    files = [file for file in sorted(model.iterdir()) if any(file.match(pattern) for pattern in MODEL_FILES)]
    for place in [*folders, *files]:
        if place.is_symlink():
            raise ConfigError(f"{place} is a link, which is not followed: only files of the run itself are uploaded")
    for file in files:
        link_file(file, home / file.name)
        if not S_ISREG((home / file.name).lstat().st_mode):  # it has become another one meanwhile
            raise ConfigError(f"{file} is no regular file: only files of the run itself are uploaded")


def _own_template(run: Path, config: Config, model: Path) -> dict[str, Path | bytes]:
    """Return ``model.template_file`` under the name that a tokenizer reads it by: whoever loads the model prompts as the run did.

    A stranger's config may name any file of the user's. Whoever recorded the digest had the template itself.

    Raises ``ConfigError`` where the digest is not recorded, or another one.
    """
    from rlep.driver.stored_run import read_recorded
    from rlep.engines.tokenizer import load_tokenizer

    if config.model.template_file is None:
        return {}
    tokenizer = load_tokenizer(model, config.model)
    recorded = read_recorded(run, "manifest.json").get("template_digest")
    named = f"model.template_file = {config.model.template_file}"
    if not recorded:
        raise ConfigError(
            f"{named} of {run} is not uploaded: its manifest.json has no template_digest that tells the file"
        )
    if recorded != tokenizer.template_digest:
        raise ConfigError(f"{named} is not as it was when {run} was trained: restore it")
    return {"chat_template.jinja": tokenizer.chat_template.encode()}
