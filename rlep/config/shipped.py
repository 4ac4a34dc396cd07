"""The config files that come with rlep: methods, machines and replay presets, to start from."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rlep.core.errors import ConfigError

HOME = Path(__file__).parent / "presets"
PLACE = Path("configs")
"""The folder of a checkout, and of copies: their comments and the documentation name them by it."""


def shipped() -> dict[str, Path]:
    """Name, e.g. ``rlep`` or ``machines/1x80gb`` → file."""
    found = {path.relative_to(HOME).with_suffix("").as_posix(): path for path in HOME.rglob("*.toml")}
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def title_of(file: Path) -> str:
    """Its purpose: the first line of its first comment, without how to use it."""
    return file.read_text().partition("\n")[0].lstrip("# ").removesuffix(" Layer it onto a method:")


def file_of(name: str) -> Path:
    """The file of that name, with or without ``configs/`` and ``.toml``. Raises ``ConfigError`` naming the nearest ones."""
    found = shipped()
    bare = name.removeprefix(f"{PLACE}/").removesuffix(".toml")
    if bare not in found:
        close = get_close_matches(bare, found, n=1)
        known = f"did you mean {close[0]}?" if close else f"there are {', '.join(found)}"
        raise ConfigError(f"rlep has no config {name}; {known}")
    return found[bare]


def copy_shipped(name: str, target: Path | None) -> Path:
    """Copy a file to ``target``, else to ``configs/NAME.toml`` of the working directory.

    Raises ``ConfigError`` where that file is there already.
    """
    source = file_of(name)
    target = PLACE / source.relative_to(HOME) if target is None else target
    target = target / source.name if target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("x") as copy:
            copy.write(source.read_text())
    except FileExistsError:
        raise ConfigError(f"{target} is there already: name another file") from None
    return target


def hint(path: Path) -> str:
    """The command that writes a missing file that rlep ships; empty for another."""
    names = [name for name in shipped() if f"/{path.as_posix()}".endswith(f"/{name}.toml")]
    return f"; `rlep config copy {max(names, key=len)} {path}` writes it" if names else ""
