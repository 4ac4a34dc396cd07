"""Which pool a command is about: the options that every command about one pool has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlep.config.schema import Config

Files = Annotated[list[Path] | None, typer.Argument(metavar="[CONFIG.toml…]", help="TOML files; later ones win.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; may be repeated.")
]
RedisUrl = Annotated[
    str | None, typer.Option("--redis", metavar="URL", help="A running Redis: redis://, rediss:// or unix://.")
]
PoolName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The pool's name in it (pool.name).")]
Embedded = Annotated[
    Path | None, typer.Option("--embedded", metavar="DIR", help="Directory of an embedded pool (pool.directory).")
]


def pool_config(
    files: list[Path] | None,
    overrides: list[str] | None,
    redis: str | None,
    name: str | None,
    embedded: Path | None,
) -> Config:
    """The config with the pool that the address names. Raises ``ConfigError``."""
    from rlep.config.settings import load_config, parse_config
    from rlep.core.errors import ConfigError

    config = load_config(files or (), overrides or ())
    if redis is not None and embedded is not None:
        raise ConfigError("--redis names a server that runs, --embedded a directory: give one of them")
    changes: dict[str, object] = {} if name is None else {"name": name}
    if redis is not None:
        changes |= {"url": redis}
    if embedded is not None:
        changes |= {"url": None, "directory": str(embedded)}
    tree = config.model_dump(mode="json")
    return parse_config(tree | {"pool": tree["pool"] | changes})
