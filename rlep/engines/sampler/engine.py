"""The generator: one vLLM engine that samples completions, scores given ones, and takes new weights while it runs.

A policy version is served only after its log-probs of fixed probes were compared with the learner's.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
from collections.abc import AsyncGenerator, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rlep.config.schema import Config
from rlep.core.errors import ActorLost, DeadlineExceeded, ModelError, WeightSyncError
from rlep.core.types import Completion, Float32Array, Int32Array, Request, Sampling
from rlep.engines.sampler.cache_use import CacheUse
from rlep.engines.sampler.lifeline import RUNTIME_DIRECTORY_KEY
from rlep.engines.sampler.requests import engine_errors, finish_reason, first_of, or_death, sample, score
from rlep.engines.sampler.runtime import remove_runtime
from rlep.engines.sampler.setup import refusal_by_vllm, start_engine
from rlep.engines.sampler.sleep import SleepState
from rlep.engines.sampler.vllm_private import destroy_socket_context, detokenize_with
from rlep.engines.sampler.weight_change import WeightChange, token_versions
from rlep.engines.sampler.weight_loading import WeightLoading, held_by
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.engines.weights.weight_update import BroadcastGroup, WeightUpdate, checkpoint_layout

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput

Result = TypeVar("Result")
CPU_EXIT_S = 0.5
"""Seconds a CPU engine's only process has to end by itself."""


@dataclass(frozen=True, slots=True)
class SamplerHealth:
    """KV cache of a live sampler."""

    kv_use: float = 0.0
    """Largest share of it in use since it was last asked."""
    preempted: int = 0
    """Requests that were set back for lack of it, and are computed again, since then."""


class Sampler:
    """One engine in one process; every method belongs to one event loop, after ``prepare_environment``.

    ``policy_version`` is None, and ``generate`` refuses, until ``confirm`` (or ``serve_base``) succeeded for the weights
    that are loaded.

    A response is drawn with the seed of its request alone, but vLLM may round a log-prob differently in another batch. So the
    same seed gives the same tokens on a CPU in float32 in practice, and on a GPU only with ``VLLM_BATCH_INVARIANT=1``.
    """

    def __init__(self, model: Path, config: Config) -> None:
        self.policy_version: int | None = None
        self._model = model
        self._config = config
        self._engine: AsyncLLMEngine | None = None
        self._tokenizer: Tokenizer  # since ``start``
        self._weights: WeightLoading  # since ``start``
        self._loaded: int | None = None
        self._pristine = True
        self._samples: set[asyncio.Task[Any]] = set()
        self._scores: set[asyncio.Task[Any]] = set()
        self._loading = asyncio.Lock()
        self._among_peers = asyncio.Event()
        self._sleep = SleepState()
        self._cache = CacheUse()
        self._in_flight = WeightChange() if config.on_update != "wait" else None

    async def start(self, deadline_s: float) -> None:
        """Start the engine with the weights of the model directory; it serves none of them yet.

        Raises:
            ModelError: the directory is not a usable model.
            DeadlineExceeded: not ready within ``deadline_s`` seconds.
            ActorLost: the engine process ended while starting, e.g. without enough memory.
        """
        files = checkpoint_layout(self._model)
        self._tokenizer = load_tokenizer(self._model)
        os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] = str(math.ceil(deadline_s))
        try:
            # Both block. Imported apart: errors that vLLM keeps from its import keep their frames, not the engine in them.
            await asyncio.to_thread(importlib.import_module, "vllm.engine.async_llm_engine")
            self._engine = await asyncio.to_thread(start_engine, self._model, self._config, self._cache.note)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine of {self._model} was not ready after {deadline_s:.0f} s") from error
        except ValueError as error:
            raise ModelError(refusal_by_vllm(self._model, self._config, error)) from error
        except RuntimeError as error:
            raise ActorLost(
                f"the engine of {self._model} did not start: {error} It printed the cause; an actor's output is in "
                f"worker-*-{os.getpid()}.out of Ray's logs: in logs/ of the run directory, or in a cluster's dashboard"
            ) from error
        detokenize_with(self._engine, self._tokenizer.backend)
        with engine_errors():
            held, *_ = await or_death(self._engine, held_by(self._engine))
        self._weights = WeightLoading(held, files, self._config.generator)

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """Sample one response per request, and yield them in small batches as they finish, in no fixed order.

        A response depends only on its request, the sampling and the weights. Closing the iterator aborts the rest.
        With ``on_update`` other than ``wait`` weights may change meanwhile; requests that come then wait for them.

        Raises:
            WeightSyncError: no policy version is being served.
            ModelError: a prompt leaves less than ``max_tokens`` of the model's context.
            ActorLost: the engine died.
        """
        engine, version, change = self._running(), self.policy_version, self._in_flight
        if version is None and not (change is not None and change.begun):
            raise WeightSyncError("the sampler serves no policy version: its weights are not confirmed")
        self._check_lengths(requests, sampling)
        ended: asyncio.Queue[asyncio.Task[tuple[Request, CompletionOutput]]] = asyncio.Queue()
        respond = sample if change is None else change.sample
        tasks = [_start(respond(engine, request, sampling), self._samples, request.id) for request in requests]
        for task in tasks:
            task.add_done_callback(ended.put_nowait)
        left = len(tasks)
        try:
            while left:
                batch = [await ended.get()]
                while not ended.empty():
                    batch.append(ended.get_nowait())
                left -= len(batch)
                if finished := [task for task in batch if not task.cancelled() or self._engine is None]:
                    yield self._completions([_result(task) for task in finished], version)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self, request_ids: Collection[str]) -> None:
        """Abort these requests; the iterators they belong to end without them."""
        for task in self._samples:
            if task.get_name() in request_ids:
                task.cancel()

    async def score(self, sequences: Sequence[tuple[Int32Array, Int32Array]]) -> list[Float32Array]:
        """Raw log-probs of each given response after its prompt, ``[T]`` each, under the loaded weights.

        Prompt and response together must be shorter than the model's context by one token, which vLLM samples and
        which is thrown away.
        """
        engine = self._running()
        tasks = [_start(score(engine, prompt, response), self._scores) for prompt, response in sequences]
        if tasks:
            await asyncio.wait(tasks)
        return [_result(task) for task in tasks]

    async def load_weights(self, weight_update: WeightUpdate) -> None:
        """Replace all weights by the published ones; they are served only after ``confirm``.

        What can be checked is checked before anything is touched: a refused weight update leaves the old version served.
        After that no version is served; running ``generate`` calls are waited for, unless ``on_update`` says otherwise.
        A failure in the transfer itself leaves the engine paused until the weights are published again.

        Raises:
            WeightSyncError: a torn file, a failed transfer, or an engine that holds other weights after it.
            ModelError: not the weights that the engine has, by name and shape.
            ActorLost: the engine died.
        """
        engine = self._running()
        async with self._loading:
            await self._weights.check(weight_update)
            self.policy_version = self._loaded = None
            self._pristine = False
            if self._in_flight is not None:
                self._in_flight.change()
            while self._samples and self._in_flight is None:
                await asyncio.wait(self._samples)
            with engine_errors():
                await or_death(engine, self._replace(engine, weight_update))
            self._loaded = weight_update.version

    async def _replace(self, engine: AsyncLLMEngine, weight_update: WeightUpdate) -> None:
        keep = self._config.on_update == "keep"
        # Without its cache a response that continues is prefilled again under the new weights.
        await engine.pause_generation(mode="keep" if keep else "abort", clear_cache=True)
        if isinstance(weight_update.source, BroadcastGroup):
            self._among_peers.set()
        try:
            async with self._sleep.waking(engine):
                await self._weights.load(engine, weight_update)
        except Exception as error:
            if engine.errored:
                raise
            raise WeightSyncError(
                f"loading policy version {weight_update.version} failed and must be repeated: {error}"
            ) from error
        finally:
            self._among_peers.clear()
        await engine.resume_generation()

    async def sleep(self) -> None:
        """Free the device's memory. Until weights are loaded and confirmed again nothing is served.

        Running ``generate`` calls are waited for. On CPU the memory stays. Raises ``ActorLost`` when the engine died.
        """
        async with self._loading:
            self.policy_version = self._loaded = None
            self._pristine = False
            while self._samples:
                await asyncio.wait(self._samples)
            with engine_errors():
                engine = self._running()
                await or_death(engine, self._sleep.fall_asleep(engine))

    async def confirm(self, weight_update: WeightUpdate) -> float:
        """Serve the loaded version if its log-probs of the probes are the learner's.

        Returns their mean absolute difference (nats).

        Raises:
            WeightSyncError: another version is loaded, there are no probes, or the difference is above the tolerance.
        """
        if self._loaded != weight_update.version or not weight_update.probes:
            raise WeightSyncError(
                f"policy version {weight_update.version} with {len(weight_update.probes)} probes cannot be confirmed: "
                f"loaded is {self._loaded}"
            )
        scores = await self.score([(probe.prompt, probe.response) for probe in weight_update.probes])
        try:
            difference = weight_update.logprob_difference(scores)
        except WeightSyncError:
            if self._in_flight is not None:
                self._in_flight.reject()
            raise
        self.policy_version = weight_update.version
        if self._in_flight is not None:
            self._in_flight.confirm()
        return difference

    def serve_base(self, version: int = 0) -> None:
        """Serve the weights of the model directory as ``version``: evaluation and collection have no learner to ask.

        Raises:
            WeightSyncError: other weights were loaded since the start, or responses are to go on under new ones, which name a
                version for each token.
        """
        if self._in_flight is not None:
            raise WeightSyncError("an engine with rollout.max_staleness serves published weights only: set it to 0")
        self._running()
        if not self._pristine:
            raise WeightSyncError(f"other weights were loaded over those of {self._model}")
        self.policy_version = version

    async def health(self) -> SamplerHealth:
        """Ask the engine; it replies between two of its steps.

        While it waits for its peers in a group, which has its own deadline, it does not reply: then it is enough that its
        processes live.

        Raises ``ActorLost`` when the engine died.
        """
        engine = self._running()
        with engine_errors():
            await engine.check_health()
            await or_death(engine, first_of(engine.is_paused(), self._among_peers.wait()))
        return SamplerHealth(*self._cache.take())

    async def close(self) -> None:
        """Stop the engine's processes and remove its files; running calls end with ``ActorLost``. Can be repeated."""
        engine, self._engine = self._engine, None
        self.policy_version = self._loaded = None
        running = self._samples | self._scores
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if engine is not None:
            # A CPU has no device memory to hand back, and the engine's process takes seconds to take itself apart.
            alone = not self._config.generator.gpus and self._config.generator.tensor_parallel == 1
            await asyncio.to_thread(engine.shutdown, CPU_EXIT_S if alone else None)
            await asyncio.to_thread(destroy_socket_context, engine)
        runtime = os.environ.get(RUNTIME_DIRECTORY_KEY)
        if runtime:
            await asyncio.to_thread(remove_runtime, Path(runtime))

    def _running(self) -> AsyncLLMEngine:
        if self._engine is None:
            raise ActorLost(f"the sampler of {self._model} is not started, or closed")
        return self._engine

    def _check_lengths(self, requests: Sequence[Request], sampling: Sampling) -> None:
        context = self._config.context
        for request in requests:
            prompt = len(request.tokens) - request.given
            if prompt + sampling.max_tokens > context:
                raise ModelError(
                    f"request {request.id}: a prompt of {prompt} tokens and {sampling.max_tokens} new "
                    f"ones do not fit into max_model_len {context}"
                )

    def _completions(self, results: list[tuple[Request, CompletionOutput]], version: int | None) -> list[Completion]:
        """``version`` generated all of every response, unless weights may change meanwhile."""
        token_lists = [np.array(output.token_ids, dtype=np.int32) for _, output in results]
        texts = [self._tokenizer.decode(tokens) for tokens in token_lists]
        versions = [None if self._in_flight is None else token_versions(output) for _, output in results]
        return [
            Completion(
                request_id=request.id,
                prompt_id=request.prompt_id,
                sample=request.sample,
                tokens=tokens,
                logprobs=np.array(cast("FlatLogprobs", output.logprobs).logprobs, dtype=np.float32),
                finish_reason=finish_reason(request, output),
                policy_version=cast("int", version) if own is None else int(own.min()),
                text=text,
                token_versions=own,
            )
            for (request, output), tokens, text, own in zip(results, token_lists, texts, versions, strict=True)
        ]


def _start(work: Coroutine[Any, Any, Result], running: set[asyncio.Task[Any]], name: str = "") -> asyncio.Task[Result]:
    task = asyncio.create_task(work, name=name)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


def _result(task: asyncio.Task[Result]) -> Result:
    if task.cancelled():
        raise ActorLost("the sampler was closed")
    with engine_errors():
        return task.result()
