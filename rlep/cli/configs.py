"""``rlep config …``: configurations shown, checked, described, and the shipped ones to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlep.cli.shell import command_errors

config_app = typer.Typer(help="Show and describe configurations, and copy one to start from.", no_args_is_help=True)

Files = Annotated[list[Path], typer.Argument(metavar="CONFIG.toml…", help="TOML files; later ones win.")]
MaybeFiles = Annotated[list[Path] | None, typer.Argument(metavar="[CONFIG.toml…]", help="TOML files; later ones win.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; may be repeated.")
]


@config_app.command("show")
@command_errors
def config_show(files: MaybeFiles = None, overrides: Overrides = None) -> None:
    """Print the resolved config as JSON."""
    from rlep.config.settings import dump_config, load_config

    typer.echo(dump_config(load_config(files or (), overrides or ())), nl=False)


@config_app.command("schema")
@command_errors
def config_schema() -> None:
    """Print the JSON schema: every key with its meaning, unit, default and bounds."""
    import json

    from rlep.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2))


@config_app.command("list")
@command_errors
def config_list() -> None:
    """Print what rlep ships to start from: recipes and their configs, and machines and replay presets to layer onto them."""
    from rlep.config.shipped import shipped, title_of

    for name, file in shipped().items():
        typer.echo(f"{name:<22}{title_of(file)}")


@config_app.command("copy")
@command_errors
def config_copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from rlep config list.")],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The copy; else below configs/.")] = None,
) -> None:
    """Copy a config that rlep ships, or the folder of a recipe, to start from."""
    from rlep.config.shipped import copy_shipped

    for copy in copy_shipped(name, file):
        typer.echo(copy)
