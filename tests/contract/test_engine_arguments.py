"""``[generator.engine]`` against the installed vLLM, whose source is read and not imported."""

from __future__ import annotations

import pytest

from rlep.check.build_checks import engine
from rlep.check.inputs import Subject
from rlep.config.engine_arguments import OWNED
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.engines.sampler.vllm_private import engine_argument_names


def test_every_argument_that_is_refused_is_one_of_vllms() -> None:
    names = engine_argument_names()
    assert OWNED.keys() <= names
    assert {"kv_cache_dtype", "enable_log_requests"} <= names - OWNED.keys()  # of both classes


def test_an_argument_that_vllm_does_not_have_is_refused_before_anything_starts() -> None:
    wrong = load_config([], ["generator.engine.kv_cache_dtyp=fp8"])
    with pytest.raises(
        ConfigError,
        match=r"^generator\.engine\.kv_cache_dtyp: vLLM's AsyncEngineArgs has no such argument; did you mean kv_cache_dtype\?$",
    ):
        list(engine(Subject(wrong)))
    right = load_config([], ["generator.engine.kv_cache_dtype=fp8"])
    assert [finding.detail for finding in engine(Subject(right))] == [
        "vLLM has the arguments of generator.engine: kv_cache_dtype"
    ]
    assert not list(engine(Subject(load_config())))
