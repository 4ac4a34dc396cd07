"""Setup of a sampler's engine: vLLM's environment variables, and vLLM's arguments.

Measured with a tiny Qwen2 (64 wide, 2 layers, vocabulary 42) on two cores, float32, 256 samples of 40 tokens:

==============================================  =======  ============  =====
setting                                         start s  tokens/s      MiB
==============================================  =======  ============  =====
worker in its own process (vLLM's default)      38.6     5,600-8,900
worker inside the engine process (used here)    12.4     9,000-12,500  1,190
the same, one seed per request (used here)      14.6     8,300-11,200  1,190
the same, requests with n = 8                   12.5     11,400-13,000 1,190
==============================================  =======  ============  =====

Nearly all of it is vLLM's Python work per token and request. CPU seconds per 40,960 tokens (busy machine, so only the ratios
hold): one seed per request 1.27 × none; prefix cache on 1.15 × off; blocks of 32 tokens 1.15 × 128.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.core.paths import SOCKET_PATH_BYTES
from rlep.engines.sampler.lifeline import RUNTIME_DIRECTORY_KEY, Lifeline
from rlep.engines.sampler.runtime import list_shared_memory, make_runtime
from rlep.engines.sampler.vllm_private import (
    SOCKET_NAME_BYTES,
    engine_argument_names,
    in_every_process,
    log_cache,
)

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs, AsyncLLMEngine

WORKER_EXTENSION = "rlep.engines.sampler.vllm_worker.WorkerExtension"
_BACKENDS = {"shared_memory": "rlep-shared-memory", "gloo": "rlep-gloo", "nccl": "nccl"}
"""vLLM's names of the transfer engines; ``nccl`` is its own."""


BLOCK_SIZE = 128
"""CPU: tokens per KV cache block. Prompts shorter than a block cannot share theirs."""
PROBES = 4
"""Sequences of the log-prob check."""


def prepare_environment(config: Config, runtime_parent: Path | None = None) -> Path:
    """Set vLLM's environment variables; to be called in the sampler's own process before anything imports vLLM.

    Everything vLLM puts on disk for this engine (sockets, rendezvous files) goes into a new private directory below
    ``runtime_parent`` (default: the system's), which is returned, and removed by ``Sampler.close`` or by the engine
    itself when its owner was killed. Nothing is reported to or fetched from the network.

    Raises:
        ConfigError: the directory's path is too long for a Unix socket in it.
    """
    runtime = make_runtime(runtime_parent)
    if len(os.fsencode(runtime)) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        runtime.rmdir()
        raise ConfigError(
            f"{runtime} is too deep for sockets (paths of at most {SOCKET_PATH_BYTES} bytes); set a shorter TMPDIR"
        )
    settings = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_RPC_BASE_PATH": str(runtime),
        "TMPDIR": str(runtime),
        RUNTIME_DIRECTORY_KEY: str(runtime),
    }
    workers = config.generator.tensor_parallel
    if not config.generator.gpus:
        settings |= {
            # Inductor's C++ compile of two sampler helpers takes a minute even in eager mode.
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": str(max(1, config.generator_threads // workers)),
            # Several workers: vLLM would pin each to a NUMA node of its own, or refuse to start without one. Nobody
            # here knows the other roles' cores, so the number of threads is bounded and the scheduler places them.
            **({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if workers > 1 else {}),
            # Allows the model inside the engine's process: no third process, no message queue between the two.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # An update frees the packed matrices of the last one and packs its own. glibc would give their pages back in
            # between: an update of 500 M weights took 2.2 s, and takes 1.3 s.
            "MALLOC_MMAP_THRESHOLD_": str(2**32),
            "MALLOC_TRIM_THRESHOLD_": str(2**33),
        }
    else:
        # FlashInfer's sampler ignores seeds, so that our requests never get it; but vLLM tries it while it starts, and
        # dies where it cannot be compiled: without nvcc, as in our image (vllm-project/vllm#49497).
        settings["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    os.environ.update(settings)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    return runtime


def engine_arguments(model: Path, config: Config) -> AsyncEngineArgs:
    """vLLM's arguments, those of ``generator.engine`` over all others; imports vLLM.

    Raises ``ConfigError`` where this vLLM does not have one of them.
    """
    from vllm import AsyncEngineArgs

    check_engine(config)
    role, context = config.generator, config.context
    cpu = not role.gpus
    defaults: dict[str, Any] = {
        "block_size": BLOCK_SIZE if cpu else None,
        # Without a full block to share, the prefix cache only costs.
        "enable_prefix_caching": context > BLOCK_SIZE if cpu else True,
    }
    return AsyncEngineArgs(**(defaults | owned_arguments(model, config) | role.engine))


def check_engine(config: Config) -> None:
    """Raise ``ConfigError`` where ``generator.engine`` has an argument that the vLLM installed here does not have."""
    names = engine_argument_names() if config.generator.engine else frozenset()
    for name in sorted(config.generator.engine.keys() - names):
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"generator.engine.{name}: vLLM's AsyncEngineArgs has no such argument{hint}")


def refusal_by_vllm(model: Path, config: Config, error: ValueError) -> str:
    """Say why vLLM did not start with a model, and that arguments of ``generator.engine`` may be at fault."""
    given = ", ".join(f"generator.engine.{name}" for name in sorted(config.generator.engine))
    why = str(error)
    if isinstance(error, ValidationError):
        why = "; ".join(": ".join((*map(str, issue["loc"]), issue["msg"])) for issue in error.errors())
    return f"vLLM cannot serve {model}{f' with {given}' if given else ''}: {why}"


def owned_arguments(model: Path, config: Config) -> dict[str, Any]:
    """vLLM's arguments that follow from the configuration; ``generator.engine`` may have none of them. Imports vLLM."""
    from vllm.config import WeightTransferConfig

    role, context = config.generator, config.context
    cpu = not role.gpus
    # The log-prob check must not wait for responses that are being generated.
    sequences = role.max_sequences + (0 if config.on_update == "wait" else PROBES)
    return dict(
        model=str(model),
        dtype=role.compute_dtype,
        load_format="safetensors",
        max_model_len=context,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(role.max_batched_tokens, context, sequences),
        enforce_eager=cpu or role.eager,
        kv_cache_memory_bytes=int(role.kv_cache_gib * 2**30) // role.tensor_parallel if cpu else None,
        # vLLM 0.32 dies when it cuts the prompt of a request with a seed: CPU generators cannot be set back.
        enable_chunked_prefill=not cpu,
        gpu_memory_utilization=role.memory_utilization,
        tensor_parallel_size=role.tensor_parallel,
        distributed_executor_backend="uni" if role.tensor_parallel == 1 else "mp",
        # vLLM's CPU worker sleeps without freeing anything.
        enable_sleep_mode=config.cluster.placement == "colocated" and not cpu,
        seed=config.run.seed,
        disable_log_stats=False,  # ``log_cache`` reads them
        logprobs_mode=f"{config.logprobs_mode}_logprobs",
        worker_extension_cls=WORKER_EXTENSION,
        weight_transfer_config=WeightTransferConfig(backend=_BACKENDS[role.transfer]),
        **in_every_process(Lifeline()),
    )


def start_engine(model: Path, config: Config, note_cache: Callable[[float, int], None]) -> AsyncLLMEngine:
    """Start vLLM's processes; blocks until the model is loaded. ``note_cache`` is told of each step's use of the KV cache."""
    from vllm import AsyncLLMEngine

    engine = AsyncLLMEngine.from_engine_args(engine_arguments(model, config))
    log_cache(engine, note_cache)
    if config.generator.tensor_parallel > 1:
        list_shared_memory(Path(os.environ[RUNTIME_DIRECTORY_KEY]))
    return engine
