"""Writes a checkpoint while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from datetime import timedelta

import torch.distributed as dist

from rlep.core.errors import CheckpointError, DeadlineExceeded


class BackgroundWriter:
    """One thread that writes one snapshot at a time, with its own process group.

    The group keeps the ranks' agreement on who writes what apart from the collectives of the training thread. It is
    gloo on GPUs too: snapshots lie in host memory. ``torch.distributed.checkpoint.async_save`` is not used because it needs
    the same group, writes ``trainer/`` alone, and would leave ``model/`` and the position to a thread like this one.
    """

    def __init__(self, timeout_s: float) -> None:
        """Collective. ``timeout_s``: a rank that does not respond for this long fails the write."""
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def check_free(self) -> None:
        """Raise ``CheckpointError`` while a snapshot is being written."""
        if self._pending is not None and not self._pending.done():
            raise CheckpointError("the checkpoint before this one is still being written")

    def begin(self, write: Callable[[], None]) -> None:
        """Run ``write`` in the thread."""
        self.check_free()
        self._pending = self._thread.submit(write)

    def done(self) -> bool:
        """Tell whether nothing is being written. Raises the error of the last snapshot, if it failed."""
        if self._pending is not None and self._pending.done():
            self._pending.result()
            return True
        return self._pending is None

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing is being written. Raises as ``done`` does, or ``DeadlineExceeded``."""
        if self._pending is not None and not wait_for([self._pending], timeout_s).done:
            raise DeadlineExceeded(f"a checkpoint was not written within {timeout_s:.0f} s")
        self.done()

    def close(self) -> None:
        """Wait for the snapshot that is being written, and end the thread."""
        self._thread.shutdown()
