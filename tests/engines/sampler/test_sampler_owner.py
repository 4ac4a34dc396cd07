"""An engine never outlives the process that owns it, and leaves no files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import psutil
import pytest

from rlep.core.errors import ConfigError, ModelError
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from tests.engines.sampler.sampler_cases import build_model, config_of

REPOSITORY = Path(__file__).parents[3]


def test_a_killed_owner_takes_the_engine_and_its_files_along(tmp_path: Path) -> None:
    build_model(tmp_path / "model", tied=True)
    with tempfile.TemporaryDirectory() as runtime, (tmp_path / "errors").open("w") as errors:
        command = [sys.executable, "-m", "tests.engines.sampler.sampler_process", str(tmp_path / "model"), runtime]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors, text=True) as owner:
            assert owner.stdout is not None
            if not any(line.strip() == "ready" for line in owner.stdout):
                pytest.fail((tmp_path / "errors").read_text()[-2000:])
            engines = psutil.Process(owner.pid).children(recursive=True)
            assert any("EngineCore" in process.name() for process in engines)
            assert len(list(Path(runtime).iterdir())) == 1
            owner.kill()
        _, alive = psutil.wait_procs(engines, timeout=200)
        assert not alive
        assert not list(Path(runtime).iterdir())


def test_a_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    with pytest.raises(ConfigError, match="107 bytes"):
        prepare_environment(config_of(64), deep)
    assert not list(deep.iterdir())


@pytest.mark.parametrize(("device", "value"), [("cuda", "0"), ("cpu", None)])
def test_a_gpu_starts_without_the_sampler_that_ignores_seeds_and_needs_a_compiler(
    device: Literal["cpu", "cuda"], value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setattr(os, "environ", {})
        prepare_environment(config_of(64, gpus=1.0 if device == "cuda" else 0.0), Path(runtime))
    assert os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") == value


async def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, config_of(64))
    with pytest.raises(ModelError, match="no usable safetensors"):
        await sampler.start(deadline_s=1)
    await sampler.close()


async def test_a_context_longer_than_the_models_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_model(tmp_path, tied=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sampler = Sampler(tmp_path, config_of(4096))
    with pytest.raises(ModelError, match="4096"):
        await sampler.start(deadline_s=500)
    await sampler.close()
