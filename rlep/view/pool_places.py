"""Pools that the console may look into: those named when it started, and embedded ones that runs serve now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlep.core.errors import DataError
from rlep.services.pool.rpc.places import SOCKET
from rlep.services.pool.rpc.served_census import pool_names
from rlep.services.pool.values import LIVE, PoolPlace
from rlep.view.run_files import RunPlace, or_note, read_json, section_of


class PoolPlaces:
    """Such pools, by number and name. An address or a token file that only a run's configuration names is never used."""

    def __init__(self, named: Sequence[PoolPlace], directories: Sequence[Path]) -> None:
        self._named, self._directories = tuple(named), tuple(directories)

    def listed(self) -> list[tuple[int, str, list[str], list[str]]]:
        """(number, where, names of its pools, notes) of each that was named."""
        return [
            (number, where(place), *or_note(lambda place=place: pool_names(place)))  # type: ignore[misc]
            for number, place in enumerate(self._named)
        ]

    def at(self, number: int, name: str) -> PoolPlace:
        """One of them. Raises ``DataError`` where there is none, else like ``pool_names``."""
        if number >= len(self._named) or name not in pool_names(self._named[number]):
            raise DataError("there is no such pool")
        return replace(self._named[number], name=name)

    def of_run(self, run: RunPlace) -> tuple[list[PoolPlace], list[str]]:
        """The pools that a run draws from or fills, or why they cannot be looked into."""
        config, notes = read_json(run, "config.json")
        if not config:
            return [], list(notes)
        pool, url = section_of(config, "pool"), _text(config, "pool", "url")
        directory = Path(text) if (text := _text(config, "pool", "directory")) else run.directory / "pool"
        try:
            found = self._found(url, directory)
        except DataError as error:
            return [], [str(error)]
        except (OSError, RuntimeError, ValueError) as error:  # a path too long, links in a circle
            return [], [f"its pool's directory cannot be read: {error}"]
        source = section_of(config, "replay").get("source")
        names = [] if source == "live" else [str(pool.get("name", "pool"))]
        if source in ("live", "both"):
            names.append(f"{_text(config, 'run', 'name') or ''}{LIVE}")
        return [replace(found, name=name) for name in names], []

    def _found(self, url: str | None, directory: Path) -> PoolPlace:
        """The place that was named, or an embedded pool that is served. Raises ``DataError`` saying what to do."""
        for place in self._named:
            if place.url == url and (url is not None or place.directory.resolve() == directory.resolve()):
                return place
        if url is not None:
            raise DataError(f"its pool is at {_shown(url)}: rlep console --pool with that address shows it")
        if not any(directory.resolve().is_relative_to(top.resolve()) for top in self._directories):
            raise DataError(f"its pool is in another directory: rlep console --pool {directory} shows it")
        if not (directory / SOCKET).is_socket():
            raise DataError(f"no process serves its pool now: rlep console --pool {directory} does, and shows it")
        return PoolPlace(None, directory, "")


def where(place: PoolPlace) -> str:
    """A place as pages name it: no user name, no query, no token."""
    return str(place.directory) if place.url is None else _shown(place.url)


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def _text(config: Mapping[str, Any], table: str, name: str) -> str | None:
    found = section_of(config, table).get(name)
    return found if isinstance(found, str) and found and "\0" not in found else None
