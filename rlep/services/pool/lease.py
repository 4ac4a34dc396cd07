"""One driver at a time writes a live pool: a lease in the pool, which the holder renews and which ends after its death."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rlep.core.errors import DeadlineExceeded, PoolError

LEASE_S = 30.0
"""How long a holder that does not renew its lease keeps it; renewed after a third of that."""
LONGEST_LEASE_S = 10 * LEASE_S
"""Longest that a server grants: nobody waits longer for a holder that has died."""
_POLL_S = 0.25
_LONGEST_JOIN_S = 5.0
_log = logging.getLogger(__name__)


Lease = Callable[[str, float], tuple[str, float] | None]
"""``PoolClient.lease``."""


class PoolLease:
    """The lease of one pool in the hands of one holder; a thread renews it until ``close``."""

    def __init__(self, lease: Lease, name: str, holder: str) -> None:
        """Take it.

        Args:
            lease: asks the pool for it.
            name: of the pool.
            holder: a word that no other process has, and who it is. The same holder may take it again.

        Raises:
            PoolError: somebody else has it and is alive, or has not lost it after ``LEASE_S``.
            DeadlineExceeded: the server does not respond.
        """
        self._lease, self._name, self._holder = lease, name, holder
        self._closed = threading.Event()
        self._take()
        self._renewing = threading.Thread(target=self._renew, name="pool-lease", daemon=True)
        self._renewing.start()

    def _take(self) -> None:
        until, left = time.monotonic() + 2 * LEASE_S, float("inf")
        while other := self._lease(self._holder, LEASE_S):
            who, remaining = other
            if remaining > left or time.monotonic() > until:  # it was renewed
                raise PoolError(
                    f"pool {self._name} is written by {who.partition(' ')[2]}, and one at a time may: "
                    "end that one (in this process, close its client), or choose another run.name or pool"
                )
            left = remaining
            time.sleep(_POLL_S)

    def _renew(self) -> None:
        while not self._closed.wait(LEASE_S / 3):
            try:
                if other := self._lease(self._holder, LEASE_S):
                    _log.error("the lease of pool %s was lost to %s", self._name, other[0].partition(" ")[2])
                    return
            except (PoolError, DeadlineExceeded) as error:
                _log.warning("the lease of pool %s was not renewed: %s", self._name, error)

    def close(self) -> None:
        """Give it back."""
        self._closed.set()
        self._renewing.join(_LONGEST_JOIN_S)
        with suppress(PoolError, DeadlineExceeded):  # then it ends by itself
            self._lease(self._holder, 0)
