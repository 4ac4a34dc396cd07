"""``rlep pool …``: what its commands share, first of all the options that say which pool is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from rlep.cli.configs import MaybeFiles, Overrides
from rlep.cli.shell import command_errors

if TYPE_CHECKING:
    from rlep.config.schema import Config

P = ParamSpec("P")

pool_app = typer.Typer(
    help="Look into an experience pool, move it, keep it in order, serve it.\n\nWhich pool: the one of a run's config files "
    "(and --set), or --redis URL --name NAME, or --embedded DIR --name NAME. The Redis password comes from "
    "RLEP_REDIS_PASSWORD or RLEP_REDIS_PASSWORD_FILE.",
    no_args_is_help=True,
)
LOOK, MOVE, KEEP, SERVE = "Look", "Move", "Keep in order", "Serve"
"""Panels of ``rlep pool --help``."""

Data = Annotated[
    list[Path] | None,
    typer.Option("--data", metavar="FILE", help="Questions with references; may be repeated (default data.train)."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say what would happen.")]


def _place(
    files: MaybeFiles = None,
    *,
    overrides: Overrides = None,
    redis: Annotated[
        str | None,
        typer.Option(
            "--redis",
            metavar="URL",
            help="A running Redis, or with HOST:PORT, grpc:// or grpcs:// a pool server (pool.url).",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The pool's name in it (pool.name).")
    ] = None,
    embedded: Annotated[
        Path | None, typer.Option("--embedded", metavar="DIR", help="Directory of an embedded pool (pool.directory).")
    ] = None,
) -> Config:
    """Load the config with the pool that the address names. Raises ``ConfigError``."""
    from rlep.config.roles import pool_url
    from rlep.config.settings import load_config, parse_config, toml_text
    from rlep.core.errors import ConfigError

    if redis is not None and embedded is not None:
        raise ConfigError("--redis names a server that runs, --embedded a directory: give one of them")
    redis = redis and pool_url(redis)
    served = redis if redis is not None and redis.startswith("grpc") else None
    options = {"pool.name": name, "pool.url": served, "pool.directory": embedded and str(embedded)}
    given = [f"{key}={toml_text(value)}" for key, value in options.items() if value is not None]
    config = load_config(files or (), [*(overrides or ()), *given])
    if embedded is None and redis == served:
        return config
    tree = config.model_dump(mode="json")
    # Token and authority in the files are those of the pool server that they name.
    return parse_config(tree | {"pool": tree["pool"] | {"url": redis, "token_file": None, "ca_file": None}})


def about_a_pool(command: Callable[Concatenate[Config, P], None]) -> Callable[..., None]:
    """Give a command the options of ``_place``, and hand it the config that they name as its first argument."""

    @functools.wraps(command)
    def placed(*arguments: P.args, **given: P.kwargs) -> None:
        place: dict[str, Any] = {option: given.pop(option) for option in inspect.signature(_place).parameters}
        command(_place(**place), *arguments, **given)

    known: dict[str, Any] = {"Config": object}  # its module is loaded when the command runs
    hints = get_type_hints(command, localns=known, include_extras=True)
    hints |= get_type_hints(_place, localns=known, include_extras=True)
    own, places = (list(inspect.signature(function).parameters.values()) for function in (command, _place))
    parameters = sorted([*own[1:], *places], key=lambda parameter: parameter.kind)  # arguments before options
    signature = inspect.Signature([parameter.replace(annotation=hints[parameter.name]) for parameter in parameters])
    placed.__dict__["__signature__"] = signature  # what typer reads
    placed.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
    return command_errors(placed)
