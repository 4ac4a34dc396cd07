"""The files of a user's modules, found without running any of them."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

from rlep.core.errors import ConfigError

INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, whose versions stand for their files."""


def source_digest(named: str, what: str) -> str:
    """Eight hex digits of the hash of the file of ``module:name``; ``what``: as the error calls it. Raises ConfigError."""
    return _hash(source_of(named, what))


def source_of(named: str, what: str) -> bytes:
    """Read the file of the module of ``module:name``; ``what``: as the error calls it. Raises ConfigError without a file.

    From here on modules of the working directory are found too, after all others: in a run's actors they are.
    """
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    module = named.partition(":")[0]
    origin = _origin(module)
    if origin is None:
        raise ConfigError(f"{what} {named!r}: no module {module} here or on the path; set PYTHONPATH or install it")
    return origin.read_bytes()


def code_versions(named: str, what: str) -> dict[str, str]:
    """Versions of the code behind ``module:name``: eight hex digits for each file, by module, and those of installed packages.

    Files are the module's own and those of the user's modules that it imports, directly or through others; packages are
    those that one of these files imports. Imports are read from the text, so one by a computed name is not seen, nor is a
    data file. Python's and rlep's own modules are left out. Raises ConfigError as ``source_of`` does.
    """
    first = named.partition(":")[0]
    found = {first: _hash(source_of(named, what))}
    packages = _packages_of(first) if _is_installed(first, _origin(first)) else set()
    waiting, seen = [first], {first}
    while waiting:
        for module in _imported(waiting.pop()):
            top = module.partition(".")[0]
            if module in seen or top in sys.stdlib_module_names or top == "rlep":
                continue
            seen.add(module)
            origin = _origin(module)
            if _is_installed(module, origin):
                packages |= _packages_of(module)
            elif origin is not None:
                found[module] = _hash(origin.read_bytes())
                waiting.append(module)
    return found | {name: metadata.version(name) for name in packages}


def _imported(module: str) -> Iterator[str]:
    """Names that a module's file imports and the packages around them; a name may be a module's or something within one."""
    names = module.split(".")
    yield from (".".join(names[:depth]) for depth in range(1, len(names)))
    origin = _origin(module)
    if origin is None or origin.suffix != ".py":
        return
    try:
        tree = ast.parse(origin.read_bytes())
    except (SyntaxError, ValueError, RecursionError):  # its import says so
        return
    package = names if origin.name == "__init__.py" else names[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            root = ".".join([*above, *([node.module] if node.module else [])])
            roots = [root, *(f"{root}.{alias.name}" for alias in node.names)] if root else []
        else:
            continue
        for root in roots:
            parts = root.split(".")
            yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _origin(module: str) -> Path | None:
    """Find the file of a module, None where there is none."""
    names = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(names) + 1):  # find_spec would run the packages that the module is in
        path = spec.submodule_search_locations if spec is not None else None
        spec = _found(".".join(names[:depth]), path) if depth == 1 or path is not None else None
    return Path(spec.origin) if spec is not None and spec.origin is not None and Path(spec.origin).is_file() else None


def _is_installed(module: str, origin: Path | None) -> bool:
    """Tell whether a module's file is one that a package brought, whose version stands for it, rather than the user's own."""
    if origin is None:
        return False
    if {*INSTALLED} & {*origin.parts} or origin.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    brought = (metadata.distribution(name) for name in _packages_of(module))  # of ``pip install --target``
    return any(one.read_text("RECORD") and origin.is_relative_to(str(one.locate_file(""))) for one in brought)


def _packages_of(module: str) -> set[str]:
    """Names of the installed packages that bring a module."""
    return set(_packages().get(module.partition(".")[0], ()))


@cache
def _packages() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _hash(source: bytes) -> str:
    return hashlib.blake2b(source, digest_size=4).hexdigest()


def _found(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders of modules, as an import does; ``path``: of the package that it is in."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(module, path)
        except KeyError:  # a folder without __init__.py: Python asks the imported package around it where it is
            spec = ModuleSpec(module, None, is_package=True)
            folders = [Path(place) / module.rpartition(".")[2] for place in path or ()]
            spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        if spec is not None:
            return spec
    return None
