"""Environments in worker processes of this one, with the verbs of the driver's port."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from rlep.config.environment import EnvironmentConfig
from rlep.core.episodes import Action, EpisodeStatus, Observation
from rlep.core.errors import ConfigError
from rlep.core.types import UNDECIDED, Status, Verdict
from rlep.services.environment.digest import verifier_name
from rlep.services.environment.link import WorkerLink
from rlep.services.environment.reply import UNKNOWN, CallReply
from rlep.services.verifier.judgement import MAX_EXTRACTED
from rlep.services.worker.jail import Limits
from rlep.services.worker.source import source_digest

MOST_CALLS = 16
"""Calls of tools in one turn that are carried out."""
CHARACTERS = 16
"""Characters of an observation that a worker keeps for each token that it may have."""
_FILES = 1024
"""Open files of a process with all its episodes."""
_MEMORY_MB = 4096
"""Of a process with all its episodes, beyond what its imports took."""


def limits_of(config: EnvironmentConfig) -> Limits:
    """Return the limits of one call, and of the process."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        wall_seconds=config.deadline_s,
        memory_mb=_MEMORY_MB,
        recycle_mb=_MEMORY_MB // 2,
        files=_FILES,
        network=config.network,
        variables=config.variables,
    )


@dataclass(slots=True)
class _Placed:
    """An episode, and the process that has it."""

    link: WorkerLink
    used: float
    """Time of its last call."""
    begun: bool = False
    failed: Observation | None = None


class LocalEnvironments:
    """``workers`` processes. An episode stays in its process until it is ended, or was not called for ``idle_s`` seconds."""

    def __init__(self, config: EnvironmentConfig, *, idle_s: float, limits: Limits | None = None) -> None:
        """``config`` has a factory. Raises ConfigError where its file is not here."""
        assert config.factory is not None
        self._factory, self._count, self._idle_s = config.factory, config.workers, idle_s
        self._limits = limits or limits_of(config)
        self._task = f"{CHARACTERS * config.observation_tokens}:{config.factory}"
        self.digest = source_digest(config.factory, "environment.factory")
        """Hash of the class's file; the version of its verdicts."""
        self._links: list[WorkerLink] = []
        self._placed: OrderedDict[str, _Placed] = OrderedDict()
        """The least recently called first."""
        self._tools: Sequence[Mapping[str, object]] = ()

    async def start(self) -> None:
        """Start the processes and wait until they serve. Raises ConfigError where the class is no environment."""
        self._links = [WorkerLink(self._task, self._limits, self._lost) for _ in range(self._count)]
        for link in self._links:
            link.start()
        try:
            self._tools, *_ = [await link.tools for link in self._links]
        except ConfigError as error:
            self.close()
            raise ConfigError(f"environment.factory = {self._factory}: {error}") from None

    @property
    def tools(self) -> Sequence[Mapping[str, object]]:
        """JSON schemas of the tools; empty where the class has ``step``."""
        return self._tools

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        """Begin an episode; one of the same name is forgotten. Raises EnvironmentFault where no process can be kept alive."""
        self._forget(episode)
        now = asyncio.get_running_loop().time()
        while self._placed and (oldest := next(iter(self._placed.items())))[1].used < now - self._idle_s:
            self._forget(oldest[0])
        link = min(self._links, key=lambda link: link.episodes)
        link.episodes += 1
        placed = self._placed[episode] = _Placed(link, now)
        reply = await link.send("begin", episode, columns, seed)
        placed.begun = True
        return self._observed(placed, [reply])

    async def act(self, episode: str, action: Action) -> Observation:
        """Answer a turn."""
        placed = self._placed.get(episode)
        if placed is None:
            reason = (
                f"there is no episode {episode}: it was not begun, was ended, or had no call for {self._idle_s:g} s"
            )
            return Observation(status="crashed", reason=reason)
        if placed.failed is not None:
            return placed.failed
        placed.used = asyncio.get_running_loop().time()
        self._placed.move_to_end(episode)
        if isinstance(action, str):
            return self._observed(placed, [await placed.link.send("step", episode, action)])
        sent = [placed.link.send("call", episode, one.name, one.arguments) for one in action[:MOST_CALLS]]
        refused = CallReply("open", f"error: at most {MOST_CALLS} calls in a turn are carried out")
        return self._observed(placed, [*await asyncio.gather(*sent), *[refused] * (len(action) - len(sent))])

    async def end(self, episode: str) -> Verdict | None:
        """Forget an episode; return its environment's verdict, that of its failure, or None."""
        placed = self._placed.pop(episode, None)
        if placed is None:
            return None
        placed.link.episodes -= 1
        if placed.failed is None:
            reply = await placed.link.send("end", episode)
            failed = self._observed(placed, [reply])
            if failed.status == "ended":
                return None if reply.reward is None else self._verdict(*reply.reward)
            placed.failed = failed
        return self._verdict(placed.failed.status, None, 0.0, placed.failed.reason)

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.close()

    def _forget(self, episode: str) -> None:
        placed = self._placed.pop(episode, None)
        if placed is not None:
            placed.link.episodes -= 1
            placed.link.send("drop", episode)

    def _lost(self, link: WorkerLink, reason: str) -> None:
        for placed in self._placed.values():
            if placed.link is link and placed.begun and placed.failed is None:
                placed.failed = Observation(status="crashed", reason=reason)

    def _observed(self, placed: _Placed, replies: Sequence[CallReply]) -> Observation:
        """The observation of a turn, and of an episode that fails the last one."""
        for reply in replies:
            if reply.status in UNDECIDED:
                placed.failed = Observation(status=cast("EpisodeStatus", reply.status), reason=reply.reason)
                return placed.failed
            if reply.status == UNKNOWN:
                placed.failed = placed.failed or Observation(status="crashed", reason="its process was lost")
                return placed.failed
        texts = tuple(reply.text for reply in replies if reply.text is not None)
        return Observation(texts, cast("EpisodeStatus", replies[-1].status) if replies else "open")

    def _verdict(self, status: str, extracted: str | None, seconds: float, reason: str, *scored: Any) -> Verdict:
        """``scored``: a score and its parts."""
        name, found = verifier_name(self._factory), cast("Status", status)
        score, parts = scored or (None, {})
        kept = None if extracted is None else extracted[:MAX_EXTRACTED]
        return Verdict(found, kept, name, self.digest, "full", seconds, score, parts, reason)


@asynccontextmanager
async def local_environments(config: EnvironmentConfig) -> AsyncIterator[LocalEnvironments]:
    """Have environments in this process as long as the block lasts. Raises ConfigError where the class is none."""
    environments = LocalEnvironments(config, idle_s=3600)
    try:
        await environments.start()
        yield environments
    finally:
        environments.close()
