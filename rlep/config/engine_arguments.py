"""Arguments of vLLM's engine that are not for ``[generator.engine]``: rlep sets them, or cannot work with another value."""

from __future__ import annotations

_WEIGHTS = "the weights, the tokenizer and the distribution are those of model.path, as the learner has them"
_PROCESSES = "rlep places and watches the engine's processes"
_REQUESTS = "rlep gives an engine its requests and reads its statistics"
_CODE = "no code is loaded by a name, nor that of a model's repository"
_QUANTISED = "published weights are compared to the bit with those that generators hold, so that none may be quantised"
_SPECULATION = (
    "a draft model would get no new weights, and a seed would no longer give the same response in any company"
)
_CACHE = "keys and values must not outlive the policy version that they are of, nor leave the engine"

OWNED: dict[str, str] = {
    "model": "set model.path",
    "dtype": "set generator.dtype",
    "seed": "set run.seed",
    "max_model_len": "set data.max_prompt_tokens and rollout.max_tokens",
    "max_num_seqs": "set generator.max_sequences",
    "max_num_batched_tokens": "set generator.max_batched_tokens",
    "enforce_eager": "set generator.eager",
    "kv_cache_memory_bytes": "set generator.kv_cache_gib on CPUs, generator.memory_utilization on GPUs",
    "gpu_memory_utilization": "set generator.memory_utilization",
    "tensor_parallel_size": "set generator.tensor_parallel",
    "data_parallel_size": "set generator.count",
    "enable_sleep_mode": "set cluster.placement",
    "weight_transfer_config": "set generator.transfer",
    "enable_lora": "set learner.lora_rank: generators get merged weights",
    "override_generation_config": "set the keys of rollout, evaluation and collection",
    "generation_config": "a response ends at every EOS of the model's own; for others set rollout.stop_tokens",
    "enable_chunked_prefill": "vLLM dies on CPUs when it cuts the prompt of a request with a seed",
    "hf_token": "no key holds a secret",
    **dict.fromkeys(("trust_remote_code", "model_class_overrides"), _CODE),
    **dict.fromkeys(("reasoning_parser_plugin", "io_processor_plugin"), _CODE),
    **dict.fromkeys(("quantization", "quantization_config", "allow_deprecated_quantization"), _QUANTISED),
    **dict.fromkeys(("speculative_config", "spec_method", "spec_model", "spec_tokens"), _SPECULATION),
    **dict.fromkeys(("kv_transfer_config", "kv_events_config", "ec_transfer_config"), _CACHE),
    **dict.fromkeys(("kv_offloading_size", "kv_offloading_backend"), _CACHE),
    **dict.fromkeys(
        ("logprobs_mode", "logits_processors", "watermark_config", "hf_overrides", "load_format"), _WEIGHTS
    ),
    **dict.fromkeys(("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"), _WEIGHTS),
    **dict.fromkeys(("model_weights", "hf_config_path", "config_format", "revision", "code_revision"), _WEIGHTS),
    **dict.fromkeys(("runner", "convert", "tokens_only"), _WEIGHTS),
    **dict.fromkeys(("worker_cls", "worker_extension_cls", "scheduler_cls", "additional_config"), _PROCESSES),
    **dict.fromkeys(("distributed_executor_backend", "pipeline_parallel_size", "device_ids"), _PROCESSES),
    **dict.fromkeys(("prefill_context_parallel_size", "enable_elastic_ep", "enable_eplb"), _PROCESSES),
    **dict.fromkeys(("enable_fault_tolerance", "fault_tolerance_config"), _PROCESSES),
    **dict.fromkeys(("nnodes", "node_rank", "master_addr", "master_port"), _PROCESSES),
    **dict.fromkeys(("disable_log_stats", "max_num_queued_reqs", "max_num_queued_tokens"), _REQUESTS),
}
"""Name of vLLM's argument → reason, or the key that sets it."""


def refusal(name: str) -> str:
    """Say why ``[generator.engine]`` may not have an argument; an empty string where it may."""
    return OWNED.get(name) or (_PROCESSES if name.startswith(("data_parallel_", "_")) else "")
