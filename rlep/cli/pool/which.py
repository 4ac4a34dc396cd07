"""Which pool a command is about, by a run's config or by address: the options that all pool commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlep.cli.shell import command_errors

if TYPE_CHECKING:
    from rlep.config.schema import Config


class Which(NamedTuple):
    """The pool that a command is about."""

    files: Sequence[Path]
    overrides: Sequence[str]
    redis: str | None
    name: str | None
    embedded: Path | None

    def config(self) -> Config:
        """The config with the pool that the address names. Raises ``ConfigError``."""
        from rlep.config.settings import load_config, parse_config
        from rlep.core.errors import ConfigError

        config = load_config(self.files, self.overrides)
        if self.redis is not None and self.embedded is not None:
            raise ConfigError("--redis names a server that runs, --embedded a directory: give one of them")
        changes: dict[str, object] = {} if self.name is None else {"name": self.name}
        if self.redis is not None:
            changes |= {"url": self.redis}
        if self.embedded is not None:
            changes |= {"url": None, "directory": str(self.embedded)}
        tree = config.model_dump(mode="json")
        return parse_config(tree | {"pool": tree["pool"] | changes})


def _which(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[CONFIG.toml…]", help="TOML files; later ones win.")
    ] = None,
    *,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; may be repeated.")
    ] = None,
    redis: Annotated[
        str | None, typer.Option("--redis", metavar="URL", help="A Redis that runs: redis://, rediss:// or unix://.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The pool's name in it (pool.name).")
    ] = None,
    embedded: Annotated[
        Path | None, typer.Option("--embedded", metavar="DIR", help="Directory of an embedded pool (pool.directory).")
    ] = None,
) -> Which:
    return Which(files or (), overrides or (), redis, name, embedded)


def on_pool(app: typer.Typer, verb: str, panel: str) -> Callable[[Callable[..., None]], None]:
    """Register a command about one pool under ``verb``; the options that say which one come after its own."""

    def register(command: Callable[..., None]) -> None:
        shared = inspect.signature(_which, eval_str=True).parameters
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            which = _which(**{key: given.pop(key) for key in shared})
            command(which, **given)

        # Arguments before options, and the command's own before the shared ones.
        parameters = sorted([*own, *shared.values()], key=lambda one: one.kind)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(verb, rich_help_panel=panel)(command_errors(run))

    return register
