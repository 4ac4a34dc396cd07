"""The file of a user's module, found without running any module."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from rlep.core.errors import ConfigError


def source_digest(named: str, what: str) -> str:
    """Eight hex digits of the hash of the file of ``module:name``; ``what``: as the error calls it. Raises ConfigError."""
    return hashlib.blake2b(source_of(named, what), digest_size=4).hexdigest()


def source_of(named: str, what: str) -> bytes:
    """The file of the module of ``module:name``; ``what``: as the error calls it. Raises ConfigError where there is none.

    From here on modules of the working directory are found too, after all others: in a run's actors they are.
    """
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    module = named.partition(":")[0]
    names = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(names) + 1):  # find_spec would run the packages that the module is in
        path = spec.submodule_search_locations if spec is not None else None
        spec = _found(".".join(names[:depth]), path) if depth == 1 or path is not None else None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(f"{what} {named!r}: no module {module} here or on the path; set PYTHONPATH or install it")
    return Path(spec.origin).read_bytes()


def _found(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders of modules, as an import does; ``path``: of the package that it is in."""
    specs = (finder.find_spec(module, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)
