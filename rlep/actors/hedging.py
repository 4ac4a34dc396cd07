"""Which requests take much longer than their fellows, and may be given to a second worker while the first still works.

Every request has a seed of its own, so both write the same answer, but for a logit that another batch rounds otherwise.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Group:
    """The requests of one job; each is alone at most once, and so hedged at most once."""

    size: int
    seconds: list[float] = field(default_factory=list)
    """How long those took that were answered by the only worker they were given to, ascending."""
    alone: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Request → (worker, since when), those that one worker holds and no other ever held, the longest held first."""
    seen: set[str] = field(default_factory=set)
    """Every request that was ever given to a worker."""

    @property
    def known(self) -> bool:
        """Whether enough is answered for a median."""
        return 2 * len(self.seconds) >= self.size


class Hedging:
    """Who may have a second copy of what, and when.

    A request is slow once it has been out for ``factor`` times the median of its job's answered requests, which counts
    as known when half of the job is answered. 0: no request ever is.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._groups: dict[Hashable, _Group] = {}

    def begin(self, job: Hashable, size: int) -> None:
        """A job of so many requests."""
        if self._factor:
            self._groups[job] = _Group(size)

    def end(self, job: Hashable) -> None:
        """Forget a job."""
        self._groups.pop(job, None)

    def taken(self, job: Hashable, request: str, worker: str, now: float) -> None:
        """A worker takes a request, as the first one or after others."""
        if (group := self._groups.get(job)) is None:
            return
        if request in group.seen:
            group.alone.pop(request, None)
        else:
            group.seen.add(request)
            group.alone[request] = worker, now

    def answered(self, job: Hashable, request: str, worker: str, now: float) -> bool:
        """A worker's answer to a request counted; True when with it the job's median is known."""
        if (group := self._groups.get(job)) is None:
            return False
        holder, since = group.alone.pop(request, ("", now))
        if holder != worker:
            return False
        insort(group.seconds, now - since)
        return group.known and 2 * (len(group.seconds) - 1) < group.size

    def slow(self, worker: str, now: float) -> str | None:
        """The request that ``worker`` may take beside another, the longest held of the oldest job first."""
        return next((request for at, request in self._due(worker) if at <= now), None)

    def next_slow(self, worker: str) -> float | None:
        """When the first such request is slow, as far as that is known now."""
        return min((at for at, _ in self._due(worker)), default=None)

    def _due(self, worker: str) -> Iterator[tuple[float, str]]:
        """(when it is slow, request): of each job that which another worker has held longest."""
        for group in self._groups.values():
            if group.alone and group.known:
                wait = self._factor * group.seconds[len(group.seconds) // 2]
                others = ((since + wait, one) for one, (holder, since) in group.alone.items() if holder != worker)
                yield from itertools.islice(others, 1)
