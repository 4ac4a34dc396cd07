"""Arguments of the engine as vLLM's own class holds them: rlep's, and those of ``[generator.engine]``."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from rlep.config.engine_arguments import OWNED
from rlep.config.settings import load_config
from rlep.core.errors import ActorLost, ConfigError, ModelError
from rlep.engines.sampler import engine as engine_module
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import engine_arguments, owned_arguments, prepare_environment
from rlep.engines.sampler.vllm_private import engine_argument_names
from tests.engines.sampler.sampler_cases import build_model, config_of

ON_GPU = ["generator.gpus=1", "learner.gpus=1"]


@pytest.mark.parametrize("devices", [[], ON_GPU])
def test_whatever_rlep_sets_is_refused_in_the_table(devices: list[str], tmp_path: Path) -> None:
    assert owned_arguments(tmp_path, load_config([], devices)).keys() <= OWNED.keys()


def test_names_read_from_the_source_are_the_fields_of_the_class() -> None:
    from vllm import AsyncEngineArgs

    assert {field.name for field in fields(AsyncEngineArgs)} == engine_argument_names()


def test_arguments_reach_vllm_and_win_over_what_rlep_only_prefers(tmp_path: Path) -> None:
    plain = engine_arguments(tmp_path, load_config())
    assert (plain.block_size, plain.enable_prefix_caching, plain.kv_cache_dtype) == (128, True, "auto")
    given = ["enable_prefix_caching=false", "block_size=32", 'kv_cache_dtype="fp8"']
    asked = engine_arguments(tmp_path, load_config([], [f"generator.engine.{setting}" for setting in given]))
    assert (asked.block_size, asked.enable_prefix_caching, asked.kv_cache_dtype) == (32, False, "fp8")
    assert asked.max_model_len == plain.max_model_len == 1024 + 3072
    assert engine_arguments(tmp_path, load_config([], ON_GPU)).block_size is None


def test_an_argument_that_vllm_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generator\.engine\.blocksize: .* did you mean block_size\?"):
        engine_arguments(tmp_path, load_config([], ["generator.engine.blocksize=32"]))


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ('block_size="many"', "block_size: Input should be a valid integer, unable to parse string as an integer"),
        ("compilation_config={ mod = 0 }", "mod: Unexpected keyword argument"),
        (
            "compilation_config=17",
            "compilation_config: Input should be a dictionary or an instance of CompilationConfig",
        ),
    ],
)
async def test_a_value_that_vllm_refuses_is_named_in_one_sentence(
    setting: str, why: str, environment: None, tmp_path: Path
) -> None:
    build_model(tmp_path, tied=True)
    config = config_of(engine=load_config([], [f"generator.engine.{setting}"]).generator.engine)
    prepare_environment(config)
    sampler = Sampler(tmp_path, config)
    name = setting.partition("=")[0]
    with pytest.raises(ModelError, match=f"^vLLM cannot serve {tmp_path} with generator.engine.{name}: {why}$"):
        await sampler.start(deadline_s=500)
    await sampler.close()


async def test_an_engine_that_does_not_start_says_where_its_output_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_engine(*_: object) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    monkeypatch.setattr(engine_module, "start_engine", start_engine)
    build_model(tmp_path, tied=True)
    sampler = Sampler(tmp_path, config_of())
    with pytest.raises(
        ActorLost, match=rf"See root cause above\. It printed the cause; .*worker-\*-{os.getpid()}\.out"
    ):
        await sampler.start(deadline_s=60)
    await sampler.close()
