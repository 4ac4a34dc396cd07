"""Undocumented parts of vLLM 0.32 that rlep uses, one name a function: a new vLLM is met here.

``tests/contract/test_private_api.py`` finds each name in the installed sources. This module imports vLLM only when called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlep.core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from vllm import AsyncLLMEngine
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

SHARED_MEMORY_NAMES = ("psm_*", "vllm_dist_*")
"""Patterns of the files in ``/dev/shm`` by which tensor-parallel workers talk; the first is Python's own."""
SOCKET_NAME_BYTES = 37
"""A slash and the UUID that vLLM names a socket by."""


def engine_death() -> tuple[type[Exception], ...]:
    """Errors that calls to an engine raise when one of its processes died."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    return EngineDeadError, EngineGenerateError


def engine_argument_names() -> frozenset[str]:
    """Names of the fields of ``AsyncEngineArgs``, by its source: to import it takes seconds.

    Raises ``ConfigError`` without vLLM.
    """
    found = find_spec("vllm")
    if found is None or found.origin is None:
        raise ConfigError("vLLM is not installed")
    tree = ast.parse(Path(found.origin).with_name("engine").joinpath("arg_utils.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [field for node in classes if node.name in ("EngineArgs", "AsyncEngineArgs") for field in node.body]
    targets = [field.target for field in fields if isinstance(field, ast.AnnAssign)]
    return frozenset(target.id for target in targets if isinstance(target, ast.Name))


def destroy_socket_context(engine: AsyncLLMEngine) -> None:
    """After ``shutdown``, which closes the sockets: end their context and its threads. Blocks."""
    engine.engine_core.resources.ctx.destroy(0)


def detokenize_with(engine: AsyncLLMEngine, tokenizer: object) -> None:
    """Have stop texts looked for in what this tokenizer of transformers decodes; vLLM's own may decode otherwise."""
    engine.output_processor.tokenizer = tokenizer


class CacheLogger:
    """One of vLLM's loggers: it tells the KV cache's share in use, and how many requests were set back, after each step."""

    def __init__(self, note: Callable[[float, int], None]) -> None:
        self._note = note

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, **_: object
    ) -> None:
        """Take in one step."""
        share = 0.0 if scheduler_stats is None else scheduler_stats.kv_cache_usage
        self._note(share, 0 if iteration_stats is None else iteration_stats.num_preempted_reqs)

    def log(self) -> None:
        """Print nothing."""

    def record_sleep_state(self, *_: int) -> None:
        """Note nothing."""

    def record_admission_rejection(self, _: str) -> None:
        """Note nothing: no limit is set that vLLM would refuse a request by."""


def log_cache(engine: AsyncLLMEngine, note: Callable[[float, int], None]) -> None:
    """Have ``note`` told of the cache after each step of an engine with statistics.

    It takes the place of vLLM's own loggers: they sort every token's latency into histograms that nobody reads.
    """
    assert engine.logger_manager is not None
    engine.logger_manager.stat_loggers[:] = [CacheLogger(note)]


def in_every_process(value: object) -> dict[str, Any]:
    """Engine arguments by which ``value`` is unpickled first in each process that vLLM starts.

    vLLM calls its ``compute_hash`` for the key of compiled graphs.
    """
    return {"additional_config": value}


def forget_weight_update(worker: Any) -> None:
    """Have a worker accept ``start_weight_update`` although an earlier update did not finish."""
    worker._weight_update_active = False


def pack_cpu_matrix(module: torch.nn.Module) -> None:
    """Make the packed copy that a linear layer multiplies by on a CPU from its present weight, which it keeps."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def kv_copies(module: torch.nn.Module) -> int:
    """Workers that hold the same k and v of a fused q, k, v: several where there are more workers than heads of k."""
    return int(getattr(module, "num_kv_head_replicas", 1))
