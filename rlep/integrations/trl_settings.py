"""A TRL trainer's prompts and sampler, as the records of its run say them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from rlep.config.schema import ModelConfig
from rlep.core.errors import ConfigError
from rlep.core.types import Sampling
from rlep.engines.tokenizer import Tokenizer, reads_variable

SUPPORTED = "1.16"
"""Minor version of TRL. 1.14.2 stores and replays episodes of tools wrongly; before it the trainer has other hooks."""


def check_version() -> None:
    """Raise ``ConfigError`` where TRL is missing or of another version, before a model is loaded."""
    try:
        installed = metadata.version("trl")
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed.split(".")[:2] != SUPPORTED.split("."):
        raise ConfigError(
            f"TrlReplay needs TRL {SUPPORTED}, installed is {installed}: pip install 'trl=={SUPPORTED}.*'"
        )


def tokenizer_of(trainer: Any, prompt: Any) -> Tokenizer:
    """The maker of a trainer's prompts: TRL takes another chat template where its own writes earlier turns otherwise."""
    backend = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    if trainer.chat_template is not None:
        backend = copy.copy(backend)
        backend.chat_template = trainer.chat_template
    made = Tokenizer(backend, _prompting(prompt, str(backend.chat_template), trainer.chat_template_kwargs))
    if not trainer.tools:
        return made
    from transformers.utils import get_json_schema

    return made.with_tools([get_json_schema(tool) for tool in trainer.tools])


def _prompting(prompt: Any, template: str, variables: Mapping[str, Any]) -> ModelConfig:
    """A trainer's way to make a prompt of a question, as rlep names its own; variables that the template reads count."""
    if isinstance(prompt, str):
        return ModelConfig(chat_template=False)
    return ModelConfig(template={name: value for name, value in variables.items() if reads_variable(template, name)})


def sampling_of(trainer: Any) -> Sampling:
    """Of the trainer's rollouts; ``generation_kwargs`` override its other arguments."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: getattr(trainer, name) for name in names} | (trainer.args.generation_kwargs or {})
    return Sampling(
        temperature=float(given["temperature"]),
        top_p=float(given["top_p"]),
        top_k=max(0, given["top_k"] or 0),
        max_tokens=int(trainer.max_completion_length),
        min_p=float(given["min_p"] or 0.0),
        repetition_penalty=float(given["repetition_penalty"]),
    )


def sampled_in(trainer: Any) -> str:
    """The type in which vLLM computes log-probs; that of one on a server is not known, and the coarsest is assumed."""
    engine = getattr(trainer.vllm_generation, "llm", None) if trainer.use_vllm else None
    return "bfloat16" if engine is None else str(engine.model_config.dtype).removeprefix("torch.")


def logprobs_mode_of(trainer: Any) -> str:
    """The kind of vLLM's log-probs: on a server as it was started, which the main process alone can ask."""
    if not trainer.use_vllm or trainer.vllm_mode != "server":
        return "processed"  # as TRL starts its own
    from accelerate.utils import broadcast_object_list

    started, failure = None, None
    if trainer.accelerator.is_main_process:
        try:
            started = trainer.vllm_generation.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        except Exception as error:  # noqa: BLE001 -- whatever it is, the other ranks wait
            failure = repr(error)
    started, failure = broadcast_object_list([started, failure])
    if failure:
        raise ConfigError(f"the vLLM server does not say how its log-probs are made: {failure}")
    mode, _, values = started.partition("_")
    if values != "logprobs":
        raise ConfigError(
            f"a vLLM server with --logprobs-mode {started} gives no log-probs: start it with processed_logprobs, as TRL needs it"
        )
    return str(mode)
