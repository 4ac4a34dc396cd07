"""``rlep push``: the model of a run on the Hugging Face hub, with a card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rlep.core.errors import ConfigError
from rlep.core.versions import check_versions

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""Files of an earlier push that a later one replaces."""


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory: its best or last checkpoint.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Model repository on the hub.")],
    *,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; it is private otherwise.")
    ] = False,
) -> None:
    """Upload a run's model to the Hugging Face hub, with a card of base model, data, method, settings and evaluations.

    The run may go on meanwhile. A push of what is there already changes nothing.
    """
    check_versions()
    from rlep.cli.cards import files_below, link_file, model_card
    from rlep.core.jsonl import read_lines
    from rlep.driver.checkpoint import choose_checkpoint
    from rlep.hub.repository import Repository
    from rlep.launch.evaluate import stored_config

    if not (run / "checkpoints").is_dir():
        raise ConfigError(f"{run} is no directory of a training run: it has no checkpoints")
    config = stored_config(run / "config.json")
    chosen, why = choose_checkpoint(run / "checkpoints", config.checkpoint.best)
    step, log = chosen.state.step, run / "evaluations.jsonl"
    evaluated = [row for row in read_lines(log) if row["step"] == step] if log.is_file() else []
    hub, card = Repository("model", repository), str(model_card(repository, config, step, evaluated))
    with tempfile.TemporaryDirectory(prefix=".push-", dir=run) as home:  # a run that goes on removes checkpoints
        for file in chosen.model.iterdir():
            if file.is_file():
                link_file(file, Path(home) / file.name)
        commit = hub.push(
            files_below(Path(home)) | {"README.md": card.encode()}, WEIGHTS, f"Step {step}", public=public
        )
    typer.echo(f"{why} of {run}, step {step}, in {repository}, commit {commit}")
