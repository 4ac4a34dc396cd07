"""What vLLM tells its loggers of the KV cache, without an engine; ``test_sampler.py`` has it from one."""

from __future__ import annotations

from types import SimpleNamespace

from rlep.engines.sampler.cache_use import CacheUse
from rlep.engines.sampler.vllm_private import log_cache


def test_the_cache_is_told_through_vllms_own_manager_of_loggers() -> None:
    from vllm.v1.metrics.loggers import StatLoggerManager
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    manager = object.__new__(StatLoggerManager)  # its constructor wants a whole engine's configuration
    manager.stat_loggers = []
    use = CacheUse()
    log_cache(SimpleNamespace(logger_manager=manager), use.note)
    step = IterationStats()
    step.num_preempted_reqs = 3
    manager.record(scheduler_stats=SchedulerStats(kv_cache_usage=0.7), iteration_stats=step, mm_cache_stats=None)
    manager.record(scheduler_stats=SchedulerStats(kv_cache_usage=0.2), iteration_stats=step, mm_cache_stats=None)
    manager.record(scheduler_stats=None, iteration_stats=None)
    manager.record_sleep_state(1, 2)
    manager.record_admission_rejection("none")
    manager.log()
    assert use.take() == (0.7, 6)
    assert use.take() == (0.0, 0)
