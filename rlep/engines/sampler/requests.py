"""One request to vLLM's engine: a sampled response, or the log-probs of a given one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rlep.core.errors import ActorLost
from rlep.core.types import FinishReason, Float32Array, Int32Array, Request, Sampling
from rlep.engines.sampler.vllm_private import engine_death

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams

Result = TypeVar("Result")
_HEALTH_S = 1.0


async def sample(engine: AsyncLLMEngine, request: Request, sampling: Sampling) -> tuple[Request, CompletionOutput]:
    """One response with its own seed, to the token that ends it: an EOS, a stop token, the last of a stop text or the limit's.

    vLLM makes text only where it must look for a stop text, in which special tokens count. The text is not used.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    parameters = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_tokens),
        skip_special_tokens=False,
        max_tokens=sampling.max_tokens - request.given,
        seed=request.seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    output = await _final(engine, request.tokens, parameters, request.id)
    return request, output.outputs[0]


async def score(engine: AsyncLLMEngine, prompt: Int32Array, response: Int32Array) -> Float32Array:
    """Raw log-probs of ``response`` after ``prompt``, ``[T]``."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    output = await _final(engine, np.concatenate([prompt, response]), parameters, "score")
    scores = cast("FlatLogprobs", output.prompt_logprobs).logprobs  # one per token after the first
    return np.array(scores[len(scores) - len(response) :], dtype=np.float32)


async def _final(
    engine: AsyncLLMEngine, tokens: Int32Array, parameters: SamplingParams, request_id: str
) -> RequestOutput:
    from vllm.inputs import tokens_input

    async for output in engine.generate(tokens_input(tokens.tolist()), parameters, request_id):
        if output.finished:
            return output
    raise ActorLost(f"the engine ended request {request_id} without a response")


def finish_reason(request: Request, output: CompletionOutput) -> FinishReason:
    """Why a response ended.

    Raises:
        ActorLost: neither by itself nor at its limit, but because the engine is shutting down.
    """
    if output.finish_reason in {"stop", "length"}:
        return cast("FinishReason", output.finish_reason)
    raise ActorLost(f"the engine gave up request {request.id}: {output.finish_reason}")


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn vLLM's errors of a dead engine into ``ActorLost``: such an engine never recovers."""
    try:
        yield
    except engine_death() as error:
        raise ActorLost(f"the vLLM engine died: {error}") from error


async def or_death(engine: AsyncLLMEngine, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which calls the engine: vLLM leaves a call unanswered when the engine is killed in it.

    Raises what vLLM raises for a dead engine, seconds after its end.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_HEALTH_S))[0]:
            await engine.check_health()
        return task.result()
    finally:
        task.cancel()


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them ends, and cancel the others. Raises what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
