"""The tree has no class name twice, and no circle of imports between folders or files."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.contract.test_layering import COMPOSE, folder_of, imports_of

PACKAGE = Path(__file__).parents[2] / "rlep"
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def sources(package: Path) -> list[Path]:
    """Every source file that somebody wrote."""
    return [path for path in sorted(package.rglob("*.py")) if not path.name.endswith(GENERATED)]


def repeated_classes(package: Path) -> dict[str, list[str]]:
    """Class name -> the files that define it, of those that are defined more than once; names with an underscore too."""
    found = defaultdict(list)
    for path in sources(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(package).as_posix())
    return {name: places for name, places in found.items() if len(places) > 1}


def part_of(parts: Sequence[str]) -> str:
    """``folder_of``, with the command line as one folder: ``rlep`` registers the pool commands, which print as all others."""
    folder = folder_of(parts)
    return "cli" if folder in COMPOSE else folder


def folder_imports(package: Path) -> dict[str, set[str]]:
    """Folder -> the other folders that its files import, inside functions too."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources(package):
        folder = part_of(path.relative_to(package).parts)
        targets = set()
        for _, name in imports_of(path, package):
            parts = name.split(".")
            if parts[0] == package.name and name != f"{package.name}.__version__":
                targets.add(part_of(parts[1:]))
        found[folder] |= targets - {folder}
    return dict(found)


def file_imports(package: Path) -> dict[str, set[str]]:
    """File -> the other files that it imports, inside functions and under ``TYPE_CHECKING`` too."""
    modules = {}
    for path in sources(package):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = {}
    for path in modules.values():
        targets = set()
        for _, name in imports_of(path, package):
            # ``from a import b`` gives ``a.b``, which may be a name in ``a``. The package itself holds its interface alone.
            module = name if name in modules else name.rpartition(".")[0]
            if module in modules and module != package.name:
                targets.add(modules[module])
        imports[path.relative_to(package).as_posix()] = {
            target.relative_to(package).as_posix() for target in targets - {path}
        }
    return imports


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Folders or files that import each other in a circle, the first one again at the end; empty without a circle."""
    done: set[str] = set()

    def walk(folder: str, way: list[str]) -> list[str]:
        if folder in way:
            return [*way[way.index(folder) :], folder]
        if folder not in done:
            for target in sorted(imports.get(folder, ())):
                if found := walk(target, [*way, folder]):
                    return found
        done.add(folder)
        return []

    return next(filter(None, (walk(folder, []) for folder in sorted(imports))), [])


def test_no_class_name_is_defined_twice() -> None:
    assert repeated_classes(PACKAGE) == {}


def test_folders_import_downwards_only() -> None:
    assert circle(folder_imports(PACKAGE)) == []


def test_files_import_in_no_circle() -> None:
    assert circle(file_imports(PACKAGE)) == []


def test_a_circle_of_files_is_found_under_type_checking_too(tmp_path: Path) -> None:
    package = tmp_path / "rlep"
    written = {
        "driver/__init__.py": "",
        "driver/context.py": "from rlep.driver.ports import Roles\nimport json",
        "driver/ports.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .context import Visit",
        "driver/step.py": "from rlep.driver import context",
    }
    for name, source in written.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    imports = file_imports(package)
    assert imports["driver/step.py"] == {"driver/context.py"}
    assert circle(imports) == ["driver/context.py", "driver/ports.py", "driver/context.py"]
    assert circle(imports | {"driver/ports.py": set()}) == []


def test_what_is_wrong_with_a_tree_is_found(tmp_path: Path) -> None:
    package = tmp_path / "rlep"
    written = {
        "core/values.py": "class Value: ...",
        "config/values.py": "def build():\n    class Value: ...",
        "config/__init__.py": "from rlep.data import prompts",
        "data/__init__.py": "",
        "data/prompts.py": "def later():\n    from ..metrics import logs\nclass Prompts: ...",
        "metrics/logs.py": "import rlep.config.values\nimport rlep.core.values",
        "metrics/wire_pb2.py": "class Value: ...",
    }
    for name, source in written.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    assert repeated_classes(package) == {"Value": ["config/values.py", "core/values.py"]}
    imports = folder_imports(package)
    assert imports == {"config": {"data"}, "core": set(), "data": {"metrics"}, "metrics": {"config", "core"}}
    assert circle(imports) == ["config", "data", "metrics", "config"]
    assert circle(imports | {"data": {"core"}}) == []
