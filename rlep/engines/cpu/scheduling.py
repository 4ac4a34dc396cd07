"""vLLM's scheduler for a generator on a CPU that needs whole responses only: less work for each token that is generated.

vLLM sends every token of every running request to the process that asked, where it is unpacked and put together. This
scheduler puts a response together beside the engine and sends it once. It runs in the engine's process, which imports it by
name (``SchedulerConfig.scheduler_cls``), without asynchronous scheduling, and may serve only requests for a final output,
with a sampled token's log-prob or none, and without speculative decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlep.engines.cpu.private import (
    EngineCoreOutput,
    EngineCoreOutputs,
    KVCacheBlocks,
    KVCacheManager,
    LogprobsLists,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    Scheduler,
    SchedulerOutput,
)


@dataclass(slots=True)
class PartialResponse:
    """A response so far: its first output, to which later tokens are added, and the tokens' log-probs."""

    scored: bool
    output: EngineCoreOutput | None = None
    logprobs: list[float] = field(default_factory=list)

    def add(self, output: EngineCoreOutput, logprob: float | None) -> EngineCoreOutput | None:
        """One step's output; returns the whole one when it was the last."""
        if self.output is None:
            self.output = output
        else:
            self.output.new_token_ids.extend(output.new_token_ids)
            self.output.finish_reason, self.output.stop_reason = output.finish_reason, output.stop_reason
            if output.events:  # preemptions
                self.output.events = [*(self.output.events or ()), *output.events]
        if self.scored and logprob is not None and output.new_token_ids:
            self.logprobs.append(logprob)
        if output.finish_reason is None:
            return None
        if self.scored:
            self.output.new_logprobs = self._lists()
        return self.output

    def _lists(self) -> LogprobsLists:
        """``[T, 1]`` tokens and log-probs as vLLM's front end takes them; ranks are not kept and read zero."""
        assert self.output is not None
        count = len(self.logprobs)
        tokens = np.array(self.output.new_token_ids, dtype=np.int32).reshape(count, 1)
        values = np.array(self.logprobs, dtype=np.float32).reshape(count, 1)
        return LogprobsLists(tokens, values, np.zeros(count, dtype=np.int32))


class WholeResponses(Scheduler):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._partial: dict[str, PartialResponse] = {}
        use_free_slots(self.kv_cache_manager)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """One step's messages by client, with the responses that ended in it."""
        for new in scheduler_output.scheduled_new_reqs:
            asked = new.sampling_params
            self._partial.setdefault(new.req_id, PartialResponse(asked is not None and asked.num_logprobs is not None))
        logprobs, model_runner_output.logprobs = model_runner_output.logprobs, None  # one slice fewer for each token
        rows = None if logprobs is None else logprobs.logprobs[:, 0].tolist()
        messages = super().update_from_output(scheduler_output, model_runner_output)
        index = model_runner_output.req_id_to_index
        for message in messages.values():
            ended = []
            for output in message.outputs:
                partial = self._partial.get(output.request_id)
                if partial is None:  # failed before its first step
                    ended.append(output)
                elif whole := partial.add(output, None if rows is None else rows[index[output.request_id]]):
                    ended.append(whole)
            message.outputs = ended
        for key in scheduler_output.finished_req_ids:  # since the step before, aborted ones too
            self._partial.pop(key, None)
        return {
            client: message
            for client, message in messages.items()
            if message.outputs or message.finished_requests or message.scheduler_stats
        }


def use_free_slots(manager: KVCacheManager) -> None:
    """Skip vLLM's slot calculation for a running request that stays within its last KV cache block.

    What else the calculation does (entering full blocks into the prefix cache, freeing blocks outside a sliding window)
    then happens when the request begins its next block.
    """
    managers = manager.coordinator.single_type_managers
    if len(managers) != 1:
        return
    blocks, size, calculate = managers[0].req_to_blocks, managers[0].block_size, manager.allocate_slots

    def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        if request.status is RequestStatus.RUNNING and not kwargs.get("num_lookahead_tokens"):
            held = blocks.get(request.request_id)
            if held is not None and request.num_computed_tokens + num_new_tokens <= len(held) * size:
                return manager.empty_kv_cache_blocks
        return calculate(request, num_new_tokens, *args, **kwargs)

    manager.allocate_slots = allocate_slots  # type: ignore[method-assign]
