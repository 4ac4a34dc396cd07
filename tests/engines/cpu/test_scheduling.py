"""Responses put together beside the engine: whole ones leave it, once, and nothing of the others stays behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(300)


def step(scheduler: Any, new: dict[str, int | None], ended: set[str], tokens: dict[str, int]) -> dict[int, Any]:
    """``update_from_output`` where each of ``tokens`` was sampled with its tenth as log-prob."""
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    scheduled = [SimpleNamespace(req_id=key, sampling_params=SimpleNamespace(num_logprobs=n)) for key, n in new.items()]
    values = np.array([token / 10 for token in tokens.values()], dtype=np.float32).reshape(-1, 1)
    sampled = np.array(list(tokens.values()), dtype=np.int32).reshape(-1, 1)
    output = ModelRunnerOutput(
        req_ids=list(tokens),
        req_id_to_index={key: index for index, key in enumerate(tokens)},
        sampled_token_ids=sampled.tolist(),
        logprobs=LogprobsLists(sampled, values, np.ones(len(tokens), dtype=np.int32)),
    )
    scheduler_output = SimpleNamespace(scheduled_new_reqs=scheduled, finished_req_ids=ended)
    messages: dict[int, Any] = scheduler.update_from_output(scheduler_output, output)
    return messages


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose base says: a token of 9 ends a response; ``broken`` failed before anything was computed."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

    from rlep.engines.cpu.scheduling import WholeResponses

    def vllm(self: Any, scheduler_output: Any, output: Any) -> dict[int, EngineCoreOutputs]:
        assert output.logprobs is None  # nothing is cut up that nobody reads
        outputs = [
            EngineCoreOutput(key, [token], finish_reason=FinishReason.STOP if token == 9 else None)
            for key, [token] in zip(output.req_ids, output.sampled_token_ids, strict=True)
        ]
        if "broken" in scheduler_output.finished_req_ids:
            outputs.append(EngineCoreOutput("broken", [], finish_reason=FinishReason.ERROR))
        return {0: EngineCoreOutputs(outputs=outputs)} if outputs else {}

    monkeypatch.setattr(Scheduler, "update_from_output", vllm)
    made = object.__new__(WholeResponses)
    made._partial = {}
    return made


def test_a_response_leaves_once_with_all_its_tokens_and_logprobs(scheduler: Any) -> None:
    assert step(scheduler, {"a": 0, "b": 0, "plain": None}, set(), {"a": 3, "b": 4, "plain": 5}) == {}
    (first,) = step(scheduler, {}, set(), {"plain": 9, "a": 6, "b": 7})[0].outputs
    assert (first.request_id, first.new_token_ids, first.new_logprobs) == ("plain", [5, 9], None)
    (second,) = step(scheduler, {}, {"plain"}, {"b": 2, "a": 9})[0].outputs
    assert (second.request_id, second.new_token_ids) == ("a", [3, 6, 9])
    assert second.new_logprobs.logprob_token_ids.tolist() == [[3], [6], [9]]
    np.testing.assert_array_equal(second.new_logprobs.logprobs, np.array([[0.3], [0.6], [0.9]], dtype=np.float32))
    assert step(scheduler, {}, {"a", "b"}, {}) == {}  # b was aborted
    assert scheduler._partial == {}


def test_what_happened_to_a_response_leaves_with_it() -> None:
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason

    from rlep.engines.cpu.scheduling import PartialResponse

    scheduled, preempted = (
        EngineCoreEvent.new_event(kind) for kind in (EngineCoreEventType.SCHEDULED, EngineCoreEventType.PREEMPTED)
    )
    partial = PartialResponse(scored=False)
    assert partial.add(EngineCoreOutput("a", [3], events=[scheduled]), None) is None
    assert partial.add(EngineCoreOutput("a", [4]), None) is None
    assert partial.add(EngineCoreOutput("a", [5], events=[preempted]), None) is None
    whole = partial.add(EngineCoreOutput("a", [9], finish_reason=FinishReason.STOP), None)
    assert whole is not None
    assert (whole.new_token_ids, whole.events) == ([3, 4, 5, 9], [scheduled, preempted])


def test_what_failed_before_its_first_step_is_passed_on(scheduler: Any) -> None:
    (failed,) = step(scheduler, {}, {"broken"}, {})[0].outputs
    assert (failed.request_id, failed.new_token_ids) == ("broken", [])


def slots(groups: int = 1) -> tuple[Any, list[int]]:
    """A KV cache manager of blocks of 4 tokens whose request holds two, and the tokens it calculated for."""
    asked: list[int] = []
    group = SimpleNamespace(req_to_blocks={"a": ["first", "second"]}, block_size=4)
    manager = SimpleNamespace(
        coordinator=SimpleNamespace(single_type_managers=[group] * groups),
        allocate_slots=lambda request, count, **_: asked.append(request.num_computed_tokens + count),
        empty_kv_cache_blocks="none new",
    )
    return manager, asked


def test_vllm_is_asked_for_slots_only_where_a_new_block_is_needed() -> None:
    from vllm.v1.request import RequestStatus

    from rlep.engines.cpu.scheduling import use_free_slots

    manager, asked = slots()
    use_free_slots(manager)
    request = SimpleNamespace(request_id="a", status=RequestStatus.RUNNING, num_computed_tokens=6)
    assert [manager.allocate_slots(request, count) for count in (1, 2)] == ["none new"] * 2
    manager.allocate_slots(request, 3)
    manager.allocate_slots(request, 1, num_lookahead_tokens=1)
    request.status = RequestStatus.WAITING
    manager.allocate_slots(request, 1)
    request.status, request.request_id = RequestStatus.RUNNING, "unknown"
    manager.allocate_slots(request, 1)
    assert asked == [9, 7, 7, 7]


def test_models_with_several_kinds_of_attention_keep_vllms_calculation() -> None:
    from rlep.engines.cpu.scheduling import use_free_slots

    manager, _ = slots(groups=2)
    before = manager.allocate_slots
    use_free_slots(manager)
    assert manager.allocate_slots is before
