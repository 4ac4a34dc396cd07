"""The generator: one vLLM engine that samples completions, scores given ones, and takes new weights while it runs.

A policy version is served only after its log-probs of fixed probes were compared with the learner's.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
from collections.abc import AsyncGenerator, Collection, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rlep.core.errors import ActorLost, DeadlineExceeded, ModelError, WeightSyncError
from rlep.core.types import Completion, Float32Array, Int32Array, Request, Sampling
from rlep.engines.sampler.lifeline import RUNTIME_DIRECTORY_KEY
from rlep.engines.sampler.requests import engine_errors, finish_reason, first_of, sample, score
from rlep.engines.sampler.runtime import remove_runtime
from rlep.engines.sampler.setup import SamplerOptions, prepare_environment, start_engine
from rlep.engines.sampler.sleep import Rest
from rlep.engines.sampler.weight_change import WeightChange, token_versions
from rlep.engines.weights.publication import (
    BroadcastGroup,
    Publication,
    Segment,
    TensorSpec,
    check_layout,
    check_segment,
    checkpoint_layout,
    update_info,
)

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

Result = TypeVar("Result")

_TIED_HEAD = "lm_head.weight"
"""Some checkpoints hold a tied output head twice; vLLM and the learner do not."""

__all__ = ["Sampler", "SamplerHealth", "SamplerOptions", "prepare_environment"]


@dataclass(frozen=True, slots=True)
class SamplerHealth:
    """What a live sampler says of itself."""

    policy_version: int | None
    """The version it serves, None while it serves none."""
    in_flight: int
    """Responses being generated."""


class Sampler:
    """One engine in one process; every method belongs to one event loop, after ``prepare_environment``.

    ``policy_version`` is None, and ``generate`` refuses, until ``confirm`` (or ``serve_base``) succeeded for the weights
    that are loaded.
    """

    def __init__(self, model: Path, options: SamplerOptions) -> None:
        self.policy_version: int | None = None
        self._model = model
        self._options = options
        self._engine: AsyncLLM | None = None
        self._expected: dict[str, TensorSpec] = {}
        self._loaded: int | None = None
        self._group: BroadcastGroup | None = None
        self._pristine = True
        self._samples: set[asyncio.Task[Any]] = set()
        self._scores: set[asyncio.Task[Any]] = set()
        self._loading = asyncio.Lock()
        self._among_peers = asyncio.Event()
        self._rest = Rest()
        self._crossing = WeightChange() if options.on_update != "wait" else None

    async def start(self, deadline_s: float) -> None:
        """Start the engine with the weights of the model directory; it serves none of them yet.

        Raises:
            ModelError: the directory is not a usable model.
            DeadlineExceeded: not ready within ``deadline_s`` seconds.
            ActorLost: the engine process ended while starting, e.g. for want of memory.
        """
        self._expected = checkpoint_layout(self._model)
        os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] = str(math.ceil(deadline_s))
        try:
            # Both block. Imported apart: errors that vLLM keeps from its import keep their frames, not the engine in them.
            await asyncio.to_thread(importlib.import_module, "vllm.v1.engine.async_llm")
            self._engine = engine = await asyncio.to_thread(start_engine, self._model, self._options)
            with engine_errors():
                await engine.collective_rpc("draw_ahead", timeout=deadline_s)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine of {self._model} was not ready after {deadline_s:.0f} s") from error
        except ValueError as error:
            raise ModelError(f"vLLM cannot serve {self._model}: {error}") from error
        except RuntimeError as error:
            raise ActorLost(f"the engine of {self._model} did not start; its log says why: {error}") from error
        if getattr(engine.model_config.hf_config, "tie_word_embeddings", False):
            self._expected.pop(_TIED_HEAD, None)

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncGenerator[list[Completion]]:
        """Sample one response per request, and yield them in small batches as they finish, in no fixed order.

        A response depends only on its request, the sampling and the weights. Closing the iterator aborts the rest.
        With ``on_update`` other than ``wait`` weights may change meanwhile; what is asked for then waits for them.

        Raises:
            WeightSyncError: no policy version is being served.
            ModelError: a prompt leaves less than ``max_tokens`` of the model's context.
            ActorLost: the engine died.
        """
        engine, version, crossing = self._running(), self.policy_version, self._crossing
        if version is None and not (crossing is not None and crossing.begun):
            raise WeightSyncError("the sampler serves no policy version: its weights are not confirmed")
        self._check_lengths(requests, sampling)
        ended: asyncio.Queue[asyncio.Task[tuple[Request, CompletionOutput]]] = asyncio.Queue()
        respond = sample if crossing is None else crossing.sample
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

    async def load_weights(self, publication: Publication) -> None:
        """Replace all weights by the published ones; they are served only after ``confirm``.

        What can be checked is checked before anything is touched: a refused publication leaves the old version served.
        After that no version is served; running ``generate`` calls are waited for, unless ``on_update`` says otherwise.
        A failure in the transfer itself leaves the engine paused until the weights are published again.

        Raises:
            WeightSyncError: not the model's full set of weights, a torn file, or a failed transfer.
            ActorLost: the engine died.
        """
        engine = self._running()
        async with self._loading:
            await self._check(publication)
            self.policy_version = self._loaded = None
            self._pristine = False
            if self._crossing is not None:
                self._crossing.change()
            while self._samples and self._crossing is None:
                await asyncio.wait(self._samples)
            keep = self._options.on_update == "keep"
            with engine_errors():
                # Without its cache a response that goes on is read again under the new weights.
                await engine.pause_generation(mode="keep" if keep else "abort", clear_cache=True)
                if isinstance(publication.source, BroadcastGroup):
                    self._among_peers.set()
                try:
                    async with self._rest.waking(engine):
                        await self._transfer(engine, publication)
                except Exception as error:
                    if engine.errored:
                        raise
                    raise WeightSyncError(
                        f"loading policy version {publication.version} failed and must be repeated: {error}"
                    ) from error
                finally:
                    self._among_peers.clear()
                await engine.resume_generation()
            self._loaded = publication.version

    async def sleep(self) -> None:
        """Let go of the device's memory. Until weights are loaded and confirmed again nothing is served.

        Running ``generate`` calls are waited for. On CPU the memory stays. Raises ``ActorLost`` when the engine died.
        """
        async with self._loading:
            self.policy_version = self._loaded = None
            self._pristine = False
            while self._samples:
                await asyncio.wait(self._samples)
            with engine_errors():
                await self._rest.fall_asleep(self._running())

    async def confirm(self, publication: Publication) -> float:
        """The handshake: serve the loaded version if its log-probs of the probes are the learner's.

        Returns the largest absolute difference.

        Raises:
            WeightSyncError: another version is loaded, there are no probes, or the differences are above the tolerance.
        """
        if self._loaded != publication.version or not publication.probes:
            raise WeightSyncError(
                f"policy version {publication.version} with {len(publication.probes)} probes cannot be confirmed: "
                f"loaded is {self._loaded}"
            )
        scores = await self.score([(probe.prompt, probe.response) for probe in publication.probes])
        try:
            gap = publication.gap(scores)
        except WeightSyncError:
            if self._crossing is not None:
                self._crossing.reject()
            raise
        self.policy_version = publication.version
        if self._crossing is not None:
            self._crossing.confirm()
        return gap

    def serve_base(self, version: int = 0) -> None:
        """Serve the weights of the model directory as ``version``: evaluation and collection have no learner to ask.

        Raises:
            WeightSyncError: other weights were loaded since the start.
        """
        self._running()
        if not self._pristine:
            raise WeightSyncError(f"other weights were loaded over those of {self._model}")
        self.policy_version = version

    async def health(self) -> SamplerHealth:
        """Ask the engine itself; the answer comes between two of its steps. While it waits for its peers in a group, which
        has a deadline of its own, it takes none: then it is enough that its processes live.

        Raises ``ActorLost`` when the engine died.
        """
        engine = self._running()
        with engine_errors():
            await engine.check_health()
            await first_of(engine.is_paused(), self._among_peers.wait())
        return SamplerHealth(self.policy_version, len(self._samples))

    async def close(self) -> None:
        """Stop the engine's processes and remove its files; running calls end with ``ActorLost``. Can be repeated."""
        engine, self._engine = self._engine, None
        self.policy_version = self._loaded = None
        running = self._samples | self._scores
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)
            # vLLM closes its sockets, but not their context and its threads.
            await asyncio.to_thread(engine.engine_core.resources.ctx.destroy, 0)
        runtime = os.environ.get(RUNTIME_DIRECTORY_KEY)
        if runtime:
            await asyncio.to_thread(remove_runtime, Path(runtime))

    def _running(self) -> AsyncLLM:
        if self._engine is None:
            raise ActorLost(f"the sampler of {self._model} is not started, or closed")
        return self._engine

    def _check_lengths(self, requests: Sequence[Request], sampling: Sampling) -> None:
        context = self._options.max_model_len
        for request in requests:
            if len(request.tokens) + sampling.max_tokens > context:
                raise ModelError(
                    f"request {request.id}: a prompt of {len(request.tokens)} tokens and {sampling.max_tokens} new "
                    f"ones do not fit into max_model_len {context}"
                )

    def _completions(self, results: list[tuple[Request, CompletionOutput]], version: int | None) -> list[Completion]:
        """``version`` wrote all of every response, unless weights may change meanwhile."""
        tokenizer = self._running().get_tokenizer()
        token_lists = [list(output.token_ids) for _, output in results]
        texts = tokenizer.batch_decode(token_lists, skip_special_tokens=True)
        versions = [None if self._crossing is None else token_versions(output) for _, output in results]
        return [
            Completion(
                request_id=request.id,
                prompt_id=request.prompt_id,
                sample=request.sample,
                tokens=np.array(tokens, dtype=np.int32),
                logprobs=np.array(cast("FlatLogprobs", output.logprobs).logprobs, dtype=np.float32),
                finish_reason=finish_reason(request, output),
                policy_version=cast("int", version) if own is None else int(own.min()),
                text=text,
                token_versions=own,
            )
            for (request, output), tokens, text, own in zip(results, token_lists, texts, versions, strict=True)
        ]

    async def _check(self, publication: Publication) -> None:
        source, wanted = publication.source, self._options.transfer
        if wanted != (source.backend if isinstance(source, BroadcastGroup) else "segment"):
            raise WeightSyncError(f"this sampler takes weights by {wanted}, published was {source!r:.80}")
        layouts = [publication.layout]
        if isinstance(source, Segment):
            layouts.append(await asyncio.to_thread(check_segment, source, publication.version))
        for layout in layouts:
            kept = [spec for spec in layout if spec.name != _TIED_HEAD or _TIED_HEAD in self._expected]
            check_layout(self._expected.values(), kept)

    async def _transfer(self, engine: AsyncLLM, publication: Publication) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        await engine.collective_rpc("abandon_weight_update")
        group = publication.source
        if isinstance(group, BroadcastGroup) and group != self._group:
            self._group = None
            await engine.shutdown_weight_transfer_engine()
            await engine.init_weight_transfer_engine(WeightTransferInitRequest(asdict(group)))
            self._group = group
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(update_info(publication)))
        await engine.finish_weight_update(str(publication.version))


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
