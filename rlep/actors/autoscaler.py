"""Generators between a minimum and a maximum by what waits for them: looks at the role, and scales it as a user would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from rlep.actors.cluster import Cluster
from rlep.actors.control import Elastic
from rlep.actors.replicas import RoleStatus
from rlep.algorithms.autoscaling import Autoscaling, Limits, Load
from rlep.config.roles import GeneratorConfig
from rlep.core.errors import RlepError

LOOK_S = 1.0
"""Time between two looks."""
GRACE_S = 60.0
"""Seconds that a leaving generator gets for what it holds."""
REST_S = 300.0
"""Time without another attempt after newcomers did not come."""
UNKNOWN_START_S = 60.0
"""A newcomer's time to start where none has been seen to start."""


class Autoscaler:
    """Keeps the number of generators within ``generator.minimum`` and ``generator.maximum``."""

    def __init__(
        self,
        cluster: Cluster,
        generators: Elastic,
        config: GeneratorConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._generators, self._config, self._clock = cluster, generators, config, clock
        self._policy: Autoscaling | None = None
        self._rest_until = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look from now on; called when the first generators have started."""
        started = [span.end - span.begin for span in self._cluster.timeline.spans if span.what == "start"]
        config = self._config
        start_s = max(started, default=UNKNOWN_START_S)
        self._policy = Autoscaling(Limits(config.minimum, config.maximum, config.max_sequences, start_s, config.idle_s))
        self._looking = asyncio.create_task(self._look_on())

    async def close(self) -> None:
        """Look no more; what was asked of the cluster's own autoscaler is taken back."""
        if self._looking is not None:
            self._looking.cancel()
            (ended,) = await asyncio.gather(self._looking, return_exceptions=True)
            if isinstance(ended, Exception):
                self._cluster.report("scaling_refused", "generator", f"looked no more: {ended!r}")
            await self._request(0)

    async def look(self) -> None:
        """Look once, and scale where that is due. A cluster without room is reported, and left alone for a while."""
        assert self._policy is not None
        load = load_of(self._generators.status(), self._clock())
        wanted = self._policy.wanted(load)
        if wanted == load.count or (wanted > load.count and load.at < self._rest_until):
            return
        try:
            await self._request(wanted)
            await self._generators.scale(wanted, GRACE_S)
        except (RlepError, RayError) as error:
            self._rest_until = self._clock() + REST_S
            self._cluster.report("scaling_refused", "generator", str(error))

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def _request(self, count: int) -> None:
        """Room for so many generators; a private cluster cannot grow."""
        if self._cluster.home is not None:
            return
        asked = {"CPU": self._config.cpus, "GPU": self._config.gpus}
        bundle = {name: amount for name, amount in asked.items() if amount}
        labels = dict(self._config.label_selector)
        await asyncio.to_thread(
            request_resources, bundles=[bundle] * count, bundle_label_selectors=[labels] * count or None
        )


def load_of(status: RoleStatus, at: float) -> Load:
    """What the policy sees of the role; a generator that leaves or is lost for good does not count."""
    return Load(
        at,
        tuple(actor.in_flight for actor in status.actors if actor.state == "serving"),
        sum(actor.state in ("placing", "starting") for actor in status.actors),
        status.backlog,
    )
