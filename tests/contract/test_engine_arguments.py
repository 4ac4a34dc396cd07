"""``[generator.engine]`` against the installed vLLM, whose source is read and not imported."""

from __future__ import annotations

import re

import pytest

from rlep.check.build_checks import engine
from rlep.check.inputs import Subject
from rlep.config.engine_arguments import OWNED, refusal
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


TELLING = re.compile(
    r"hf_token|tokens_only|tokenizer|trust|plugin|class_override|^override|^spec_|speculative|^enable_lora|"
    r"kv_(transfer|events|offload)|^ec_transfer|parallel_size|quantiz|logprob|seed|logits|watermark_|_cls$|generation_config|"
    r"load_format|config_format|revision|convert|sleep|_elastic|_eplb$|fault_tolerance"
)
"""Names of arguments that could part an engine from the learner, from its owner, or from its requests."""
HARMLESS = {
    "decode_context_parallel_size": "among the workers of generator.tensor_parallel",
    "max_logprobs": "rlep asks for none beside the sampled token's",
    "sleep_mode_offload_cudagraph": "memory alone",
    "sleep_preserve_parameter_names": "all weights are published after a sleep",
}
"""Those that may be set all the same, with the reason."""


def test_every_argument_of_a_telling_name_is_refused_or_was_looked_at() -> None:
    """A new vLLM brings new ones: each belongs into ``OWNED`` or ``HARMLESS``."""
    telling = {name for name in engine_argument_names() if TELLING.search(name)}
    assert len(telling) > 40
    assert {name for name in telling if not refusal(name)} == HARMLESS.keys()
