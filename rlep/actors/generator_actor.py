"""One vLLM engine as a Ray actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import ray

from rlep.actors.gathering import gather_items
from rlep.actors.node_address import use_node_interface
from rlep.actors.node_model import model_on_node
from rlep.actors.once import Once
from rlep.config.schema import Config
from rlep.core.builds import check_builds, check_triton
from rlep.core.types import Completion, Request, Sampling
from rlep.engines.sampler.engine import Sampler, SamplerHealth
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.weights.weight_update import WeightUpdate


@ray.remote
class GeneratorActor:
    """One engine. A dead engine ends the actor, so that its supervisor sees it."""

    def __init__(self, model: Path, config: Config, runtime_parent: Path | None, devices: str = "") -> None:
        """``devices``: the GPUs to use instead of those that Ray gives this actor."""
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        use_node_interface()
        self._model, self._config, self._environment = model, config, dict(os.environ)
        prepare_environment(config, runtime_parent)
        self._gpus = config.generator.gpus
        self._sampler = Sampler(model, config)
        self._once = Once()

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def start(self, number: int, deadline_s: float) -> None:
        """Load the model. Here and below, a call that comes again with its ``number`` is the same one."""
        check_builds(self._gpus, None)
        if self._gpus:
            check_triton()
        await self._once(number, lambda: self._start(deadline_s))

    async def _start(self, deadline_s: float) -> None:
        given = self._model, self._config.model, deadline_s, self._environment
        self._sampler = Sampler(await asyncio.to_thread(model_on_node, *given), self._config)
        await self._sampler.start(deadline_s)

    async def serve_base(self, version: int) -> None:
        """Serve the weights loaded from the model directory as policy ``version``."""
        self._sampler.serve_base(version)

    async def load(self, number: int, weight_update: WeightUpdate) -> float:
        """Load published weights and confirm them by log-probs; returns the mean difference in nats."""
        difference: float = await self._once(number, lambda: self._load(weight_update))
        return difference

    async def _load(self, weight_update: WeightUpdate) -> float:
        weight_update = weight_update.on_node(ray.get_runtime_context().get_node_id())
        await self._sampler.load_weights(weight_update)
        return await self._sampler.confirm(weight_update)

    async def sleep(self, number: int) -> None:
        """Free the device's memory; ``load`` wakes the engine."""
        await self._once(number, self._sampler.sleep)

    @ray.method(max_task_retries=0)  # a stream that broke is begun anew by whoever read it
    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[list[Completion]]:
        """Stream finished completions in small lists."""
        async for finished in gather_items(self._sampler.generate(requests, sampling)):
            yield finished

    async def abandon(self, request_ids: Sequence[str]) -> None:
        """Stop generating these: their responses are no longer needed."""
        self._sampler.abandon(frozenset(request_ids))

    async def health(self) -> SamplerHealth:
        """Ask the engine for its state; fails when it is dead."""
        return await self._sampler.health()

    async def close(self) -> None:
        """End the engine's processes."""
        await self._sampler.close()
