"""Names of environments in a pool's records: what they are called, and the hash of what they are written in."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rlep.core.errors import ConfigError
from rlep.services.worker.source import source_digest

MAIN = "__main__"
"""Module of the script that runs: it may change without a change of the classes in it."""


def environment_digest(factory: str | None, what: str = "environment.factory") -> str:
    """``module:Class:`` and the hash of the module's file; empty for None.

    Raises ``ConfigError``, with ``what``, if the file is not here.
    """
    return f"{factory}:{source_digest(factory, what)}" if factory is not None else ""


def verifier_name(factory: str) -> str:
    """Name that the verdicts of an environment have as their verifier's."""
    return f"environment:{factory}"


def class_digest(kind: type) -> str:
    """``environment_digest`` of a class that is there; of one in the script that runs, with the hash of the class alone."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    return f"{name}:{_hash([kind])}" if kind.__module__ == MAIN else environment_digest(name, "environment_factory")


def tools_digest(tools: Sequence[Callable[..., Any]]) -> str:
    """Names functions that are tools by their sorted names and the hash of their sources. Raises ``ConfigError``."""
    ordered = sorted(tools, key=lambda tool: str(getattr(tool, "__name__", tool)))
    return f"tools:{','.join(tool.__name__ for tool in ordered)}:{_hash(ordered)}"


def _hash(written: Sequence[Any]) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for one in written:
        try:
            source = inspect.getsource(one).encode()
        except (OSError, TypeError):
            name = getattr(one, "__name__", repr(one))
            raise ConfigError(
                f"{name} has no source that can be read, by which a pool would know it again: write it in a file"
            ) from None
        digest.update(f"{len(source)}:".encode() + source)
    return digest.hexdigest()
