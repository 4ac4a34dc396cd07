"""The files that come with rlep to start from: recipes, each a folder, and machines and replay presets to layer onto them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rlep.core.errors import ConfigError

HOME = Path(__file__).parent / "presets"
PLACE = Path("configs")
"""The folder of a checkout, and of copies: their comments and the documentation name them by it."""
README = "README.md"


def shipped() -> dict[str, Path]:
    """Name → file: ``paper``, a recipe, → its README; ``paper/rlep`` and ``machines/1x80gb`` → a config. Recipes come first."""
    recipes = {path.parent: path for path in HOME.glob(f"*/{README}")}
    files = sorted([*recipes.values(), *HOME.glob("*/*.toml")], key=lambda path: (path.parent not in recipes, path))
    return {
        (path.parent if path.name == README else path.with_suffix("")).relative_to(HOME).as_posix(): path
        for path in files
    }


def title_of(file: Path) -> str:
    """Its purpose: its first line, a heading or a comment, without how to use it."""
    return file.read_text().partition("\n")[0].lstrip("# ").removesuffix(" Layer it onto a method:")


def file_of(name: str) -> Path:
    """The file of that name, with or without ``configs/`` and ``.toml``. Raises ``ConfigError`` naming the nearest ones."""
    files = shipped()
    bare = name.removeprefix(f"{PLACE}/").removesuffix(".toml").rstrip("/")
    if bare not in files:
        close = [known for known in files if known.endswith(f"/{bare}")] or get_close_matches(bare, files, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(files)}"
        raise ConfigError(f"rlep has no config {name}; {remedy}")
    return files[bare]


def copy_shipped(name: str, target: Path | None) -> list[Path]:
    """Copy a file, or all files of a recipe, to ``target``, else below ``configs`` of the working directory.

    Raises ``ConfigError`` where one of them is there already; the others are not written then.
    """
    source = file_of(name)
    if source.name == README:
        folder = PLACE / source.parent.name if target is None else target
        copies = {path: folder / path.name for path in sorted(source.parent.iterdir())}
    else:
        target = PLACE / source.relative_to(HOME) if target is None else target
        copies = {source: target / source.name if target.is_dir() else target}
    for copy in copies.values():
        if copy.exists():
            raise ConfigError(
                f"{copy} is there already: name another {'folder' if copies.keys() - {source} else 'file'}"
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
    for original, copy in copies.items():
        with copy.open("x") as file:
            file.write(original.read_text())
    return list(copies.values())


def hint(path: Path) -> str:
    """The command that writes a missing file that rlep ships; empty for another."""
    names = [name for name, file in shipped().items() if file.name == path.name]
    return f"; `rlep config copy {names[0]} {path}` writes it" if names else ""
