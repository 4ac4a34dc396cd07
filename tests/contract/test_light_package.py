"""`pip install rlep` brings the clients, the values and the command line; the rest says which extra brings it.

The bare environment here is made of links to the base packages of this one, so that nothing else can be imported.
``test_installed_wheel.py`` installs the wheel into real ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlep
from rlep.core.versions import EXTRAS
from tests.contract.test_layering import PACKAGE, imports_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = {"accelerate", "reasoning_gym", "tensordict", "transfer_queue", "triton", "trl", "verl"}
"""Modules of the extra tasks, of torch's own package, and of the trainers that keep their own environment."""
LIGHT = (
    "algorithms",
    "cli/pool",
    "config",
    "core",
    "data",
    "hub",
    "integrations",
    "methods",
    "metrics",
    "services/pool/maintenance",
)
"""Folders whose modules can be imported in a bare environment, but the loss, verl's buffer and TRL's log, which take tensors."""
TENSORS = {"algorithms/loss.py", "integrations/trl_log.py", "integrations/verl.py"}


def brought_by(texts: Iterable[str]) -> set[str]:
    """Names of all packages that these requirements install, by the metadata of those that are here."""
    waiting, found = list(map(Requirement, texts)), set[str]()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        if name == "rlep":
            own = PROJECT["optional-dependencies"]
            waiting += [Requirement(text) for extra in wanted.extras for text in own[extra]]
            continue
        found.add(name)
        try:
            asked = list(map(Requirement, requires(name) or ()))
        except PackageNotFoundError:  # for another system or Python
            continue
        extras = wanted.extras or {""}
        waiting += [one for one in asked if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages as `pip install rlep` leaves it."""
    home = tmp_path_factory.mktemp("bare")
    (home / "google").mkdir()  # of several packages
    (home / "rlep").symlink_to(ROOT / "rlep")
    for name in brought_by(PROJECT["dependencies"]):
        package = distribution(name)
        for file in package.files or ():
            link = home / Path(*file.parts[: 2 if file.parts[0] == "google" else 1])
            if file.parts[0] not in ("..", "__pycache__") and not link.is_symlink():
                link.symlink_to(str(package.locate_file(link.relative_to(home))))
    return home


def run(bare: Path, program: str, directory: Path) -> str:
    """What a program prints that imports from the standard library and ``bare`` alone; warnings are errors."""
    start = f"import sys; sys.path.append({str(bare)!r})\n"
    words = [sys.executable, "-I", "-S", "-W", "error", "-c", start + program]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(bare: Path, lines: Sequence[str], directory: Path) -> list[tuple[int, str]]:
    """Exit status and standard error of each of these command lines."""
    program = (
        "import json\nfrom typer.testing import CliRunner\nfrom rlep.cli import app\n"
        f"done = [CliRunner().invoke(app, line.split()) for line in {[*lines]!r}]\n"
        "print(json.dumps([[one.exit_code, one.stderr or repr(one.exception) * one.exit_code] for one in done]))"
    )
    return [(status, text) for status, text in json.loads(run(bare, program, directory))]


def test_the_package_offers_the_clients_the_values_and_the_advantages(bare: Path, tmp_path: Path) -> None:
    names = sorted({*rlep.__all__} - {"policy_loss"})
    program = (
        f"from rlep import {', '.join(names)}\n"
        "from rlep.core.errors import DeadlineExceeded\n"
        # (1 − 0.5) / (std of 1 and 0 over one degree of freedom + 1e-6)
        "print(group_advantages([1, 0], [0, 0]).round(5).tolist())\n"
        "print(overlong_penalty(95, max_length=100, buffer=10))\n"
        "try: PoolClient('127.0.0.1:1', deadline=1).stats()\n"
        "except DeadlineExceeded as error: print(error)\n"
    )
    advantages, penalty, error = run(bare, program, tmp_path).splitlines()
    assert (json.loads(advantages), float(penalty)) == ([0.70711, -0.70711], -0.5)
    assert error.startswith("counting at pool server 127.0.0.1:1: not done within 1 s: nobody listens there")


def test_folders_of_the_client_import_base_packages_only(bare: Path, tmp_path: Path) -> None:
    files = [
        path
        for folder in LIGHT
        for path in (PACKAGE / folder).glob("*.py")
        if str(path.relative_to(PACKAGE)) not in TENSORS
    ]
    modules = [".".join(("rlep", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files]
    assert len(modules) > 50
    program = (
        f"import importlib\nfor name in {modules}:\n  if name.endswith('__main__'): continue\n"
        "  try: importlib.import_module(name)\n  except ModuleNotFoundError as error: print(name, 'imports', error.name)"
    )
    assert run(bare, program, tmp_path) == ""


def test_a_pool_server_and_the_shipped_configs_need_nothing_else(bare: Path, tmp_path: Path) -> None:
    server = "--redis grpc://127.0.0.1:1 --set pool.deadline_s=3"
    verbs = ["stats", "browse", "show x", "sample", "prune --keep 1", "prune --damaged", "seal --yes"]
    for status, text in commands(bare, [f"pool {verb} {server}" for verb in verbs], tmp_path):
        assert (status, text.count("nobody listens there")) == (1, 1), text
    lines = ["--help", "config list", "config schema", "config copy paper/rlep mine.toml", "config show mine.toml"]
    assert commands(bare, lines, tmp_path) == [(0, "")] * len(lines)
    assert (tmp_path / "mine.toml").read_text() == (ROOT / "rlep/config/presets/paper/rlep.toml").read_text()


def test_what_needs_an_extra_says_which(bare: Path, tmp_path: Path) -> None:
    """One line each, by the first package that is missing."""
    (tmp_path / "redis.conf").write_text("")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    needs = {
        "pool serve --embedded data": ("grpc_health", "pool"),
        "pool stats --embedded .": ("redis", "pool"),
        "pool export out --redis grpc://127.0.0.1:1": ("pyarrow", "pool"),
        "pool pull org/name": ("huggingface_hub >= 2.4.0 and < 3.0.0", "hub"),
        "grade rows.jsonl": ("math_verify", "verifier"),
        "grade rows.jsonl --profile judge:judge.toml": ("httpx", "verifier"),
        "report .": ("jinja2", "cuda"),
        "train mine.toml": ("ray >= 2.60.0 and < 2.61.0", "cuda"),
    }
    for (line, (package, extra)), (status, text) in zip(
        needs.items(), commands(bare, list(needs), tmp_path), strict=True
    ):
        remedy = f"pip install 'rlep[{extra}]'" + (", or 'rlep[cpu]' without a GPU" if extra == "cuda" else "")
        assert (status, text.split(": ", 1)[1]) in (
            (1, f"this needs {package}, which is not installed: {remedy}\n"),
            (1, f"rlep needs {package}, which is not installed: {remedy}\n"),
        ), line
    program = "import rlep\ntry: rlep.policy_loss\nexcept rlep.core.errors.WrongVersionError as error: print(error)"
    said = "this needs torch, which is not installed: pip install 'rlep[cuda]', or 'rlep[cpu]' without a GPU\n"
    assert run(bare, program, tmp_path) == said


def test_a_module_that_is_missing_for_another_reason_keeps_its_traceback(bare: Path, tmp_path: Path) -> None:
    program = (
        "import rlep\nrlep._HOMES['policy_loss'] = 'rlep.gone'\n"
        "try: rlep.policy_loss\nexcept ModuleNotFoundError as error: print(error)"
    )
    assert run(bare, program, tmp_path) == "No module named 'rlep.gone'\n"


def test_the_python_page_lists_the_extras() -> None:
    page = (ROOT / "docs/reference/python-api.md").read_text()
    rows = re.findall(r"^\| (.+?) \|", page.partition("| Extra |")[2].partition("\n## ")[0], re.M)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [*(extra for extra in EXTRAS if extra != "cuda"), "cpu", "cuda"]


def test_every_package_that_is_imported_comes_with_the_base_or_an_extra_that_messages_name() -> None:
    modules, base = packages_distributions(), brought_by(PROJECT["dependencies"])
    named = {module for group in EXTRAS.values() for module in group}
    for path in PACKAGE.rglob("*.py"):
        for line, name in imports_of(path, PACKAGE):
            module = name.partition(".")[0]
            if module in sys.stdlib_module_names | named | OTHERS | {"rlep"}:
                continue
            brought = {*map(canonicalize_name, modules.get(module, []))}
            assert base & brought, f"{path}:{line}: {name} is neither in EXTRAS of rlep/core/versions.py nor in OTHERS"
    for extra, group in EXTRAS.items():
        # The build for CPUs is what these tests run on.
        asked = brought_by(PROJECT["optional-dependencies"]["cpu" if extra == "cuda" else extra])
        for module in group:
            packages = {*map(canonicalize_name, modules[module])}
            assert packages & asked, f"{module} does not come with {extra}"
            assert not packages & base, f"{module} comes with rlep"
