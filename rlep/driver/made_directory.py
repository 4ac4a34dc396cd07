"""A directory that a command writes to: a refused command leaves nothing that it made there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class MadeDirectory:
    """Makes a directory, and remembers its earlier entries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directories = [place for place in (path, *path.parents) if not place.exists()]  # the deepest first
        path.mkdir(parents=True, exist_ok=True)
        self._before = self.names()

    def lock_out(self, lock: str) -> None:
        """Count all that is there now as made by others, but the file ``lock``, which keeps them out from now on."""
        made = lock not in self._before and not (self.path / lock).stat().st_size
        self._before = self.names() - ({lock} if made else set())

    def remove_entries(self, names: Iterable[str]) -> None:
        """Remove the files and directories of these names that were not here before."""
        for name in {*names} - self._before:
            entry = self.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)

    def remove_directories(self) -> None:
        """Remove the directory and its parents, as far as they were made here and are empty."""
        for place in self._directories:
            with suppress(OSError):
                place.rmdir()

    def names(self) -> set[str]:
        """List the entries that are in it now."""
        return {entry.name for entry in self.path.iterdir()}
