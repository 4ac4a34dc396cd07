"""The CPU acceleration's scheduler against vLLM's own: the same responses, in one message each.

vLLM's scheduler and KV cache manager are real. The model runner is replaced by what the scheduler gets from it: one row per
scheduled request, and a token where the prompt is prefilled. There is so little cache that requests lose theirs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlep.engines.sampler.engine import SamplerOptions, prepare_environment
from rlep.engines.sampler.runtime import remove_runtime
from rlep.engines.sampler.setup import engine_arguments
from tests.engines.sampler.sampler_cases import CONTEXT, EOS, VOCABULARY, build_model

pytestmark = pytest.mark.timeout(300)
BLOCK, BLOCKS, AT_ONCE, BUDGET = 4, 30, 6, 16


def token_of(number: int, position: int) -> int:
    """What the model says at one position of one request; about every 15th is the end."""
    drawn = random.Random(number * 1000 + position).randrange(30)
    return EOS if drawn < 2 else drawn % (VOCABULARY - 2) + 2


def logprob_of(number: int, position: int) -> float:
    """Exact in float32, and of no other token."""
    return -(number * 128 + position) / 1024


@dataclass
class Asked:
    """One request and what has come back of it."""

    number: int
    prompt: int
    most: int
    scored: bool
    """Its prompt is scored, as the log-prob check does; otherwise it is sampled with log-probs."""
    messages: list[Any] = field(default_factory=list)

    @property
    def answer(self) -> list[int]:
        """The whole one."""
        tokens: list[int] = []
        while len(tokens) < self.most and EOS not in tokens:
            tokens.append(token_of(self.number, self.prompt + len(tokens)))
        return tokens


class Runner:
    """What a model runner knows of each request, and returns."""

    def __init__(self, asked: dict[str, Asked]) -> None:
        self._asked = asked
        self._known: dict[str, list[int]] = {}
        """Computed, and to be computed before sampling begins."""

    def run(self, work: Any) -> Any:
        """One step."""
        from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput

        for key in work.finished_req_ids | (work.preempted_req_ids or set()):
            self._known.pop(key, None)
        for new in work.scheduled_new_reqs:
            self._known[new.req_id] = [new.num_computed_tokens, len(new.prefill_token_ids or new.prompt_token_ids)]
        again = work.scheduled_cached_reqs  # the first runner is told of those that lost their cache as of known ones
        for key, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if key in again.all_token_ids:
                self._known[key] = [computed, len(again.all_token_ids[key])]
        keys = sorted(work.num_scheduled_tokens, key=lambda key: (work.num_scheduled_tokens[key] != 1, key))
        tokens, values, prompts = [], [], {}
        for key in keys:
            known, asked = self._known[key], self._asked[key]
            known[0] += work.num_scheduled_tokens[key]
            prefilled = known[0] >= known[1]
            tokens.append([token_of(asked.number, known[0])] if prefilled else [])
            values.append(logprob_of(asked.number, known[0]))
            if asked.scored and prefilled:
                rows = torch.zeros(asked.prompt - 1, 1)
                prompts[key] = LogprobsTensors(rows.int(), rows + asked.number, rows[:, 0].int())
        return ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: row for row, key in enumerate(keys)},
            sampled_token_ids=tokens,
            logprobs=LogprobsLists(
                np.zeros((len(keys), 1), dtype=np.int32),
                np.array(values, dtype=np.float32).reshape(-1, 1),
                np.zeros(len(keys), dtype=np.int32),
            )
            if any(not self._asked[key].scored for key in keys)
            else None,
            prompt_logprobs_dict=prompts,
        )


@pytest.fixture(scope="module")
def config(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM's, for so little cache that requests lose theirs to others; prompts are prefilled in chunks."""
    directory = tmp_path_factory.mktemp("model")
    build_model(directory, tied=True)
    options = SamplerOptions(max_model_len=CONTEXT, kv_cache_gib=0.125, max_num_seqs=AT_ONCE)
    runtime = prepare_environment(options)
    made: Any = engine_arguments(Path(directory), options).create_engine_config()
    made.scheduler_config.enable_chunked_prefill = True
    made.scheduler_config.max_num_batched_tokens = BUDGET
    made.scheduler_config.max_num_scheduled_tokens = BUDGET
    made.cache_config.enable_prefix_caching = True
    made.cache_config.num_gpu_blocks = BLOCKS
    yield made
    remove_runtime(runtime)


def build(config: Any, kind: type[Any]) -> Any:
    """A scheduler of one attention group."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    cache = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    return kind(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def ask(scheduler: Any, key: str, asked: Asked) -> None:
    """Put a request in, as the sampler does."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    hasher = get_hash_fn_by_name("sha256")
    init_none_hash(hasher)
    parameters = SamplingParams(max_tokens=asked.most, **({"prompt_logprobs": 0} if asked.scored else {"logprobs": 0}))
    parameters.update_from_generation_config({}, eos_token_id=EOS)
    prompt = [2] * 5 + [asked.number % 7 + 2] * (asked.prompt - 5)
    scheduler.add_request(Request(key, prompt, parameters, None, block_hasher=get_request_block_hasher(BLOCK, hasher)))


def drive(scheduler: Any, asked: dict[str, Asked], aborted: dict[int, str], emptied: int) -> int:
    """All requests; who is aborted before which step, and when the cache is emptied.

    Returns how often a request lost its cache.
    """
    from vllm.v1.request import RequestStatus

    runner, waiting, lost = Runner(asked), deque(asked.items()), 0
    for step in range(2000):
        for _ in range(min(2, len(waiting))):
            ask(scheduler, *waiting.popleft())
        if step in aborted:
            scheduler.finish_requests(aborted[step], RequestStatus.FINISHED_ABORTED)
        if scheduler.has_requests():
            work = scheduler.schedule()
            lost += len(work.preempted_req_ids or ())
            for message in scheduler.update_from_output(work, runner.run(work)).values():
                for output in message.outputs:
                    asked[output.request_id].messages.append(output)
        if step == emptied:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
        if not (waiting or scheduler.has_requests()):
            return lost
    raise AssertionError(f"not done: {[key for key, one in asked.items() if not one.messages]}")


def requests(seed: int) -> dict[str, Asked]:
    """Forty, of prompts longer and shorter than a piece; every fifth is scored."""
    drawn = random.Random(seed)
    return {
        f"r{number}": Asked(
            number, drawn.randrange(6, 30), 1 if number % 5 == 0 else drawn.randrange(1, 40), number % 5 == 0
        )
        for number in range(1, 41)
    }


@pytest.mark.parametrize("seed", range(3))
def test_whole_responses_are_those_that_vllm_sends_token_by_token(config: Any, seed: int) -> None:
    from rlep.engines.cpu.private import Scheduler
    from rlep.engines.cpu.scheduling import WholeResponses

    drawn = random.Random(seed)
    aborted = {drawn.randrange(5, 90): f"r{drawn.randrange(1, 41)}" for _ in range(8)}
    scheduler, whole, parts = build(config, WholeResponses), requests(seed), requests(seed)
    assert drive(scheduler, whole, aborted, emptied=40) > 0
    assert drive(build(config, Scheduler), parts, aborted, emptied=40) > 0
    assert scheduler._partial == {}
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1  # vLLM keeps one
    answered = 0
    for key, one in whole.items():
        assert [token for part in parts[key].messages for token in part.new_token_ids] == one.answer[
            : sum(len(part.new_token_ids) for part in parts[key].messages)
        ]
        if not one.messages:
            assert key in aborted.values()
            continue
        answered += 1
        (message,) = one.messages
        assert message.new_token_ids == one.answer
        assert message.finish_reason == parts[key].messages[-1].finish_reason
        if one.scored:
            assert message.new_prompt_logprobs_tensors.logprobs.tolist() == [[one.number]] * (one.prompt - 1)
            assert message.new_logprobs is None
        else:
            expected = [logprob_of(one.number, one.prompt + index) for index in range(len(one.answer))]
            assert message.new_logprobs.logprobs[:, 0].tolist() == expected
    assert answered >= 32
