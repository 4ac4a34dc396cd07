"""gRPC's health service, whose watchers do not hold up the end of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health


class WatchedHealth(health.HealthServicer):
    """gRPC's own keeps every ``Watch`` open for as long as its client wants, and a server that stops waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._watchers: set[Callable[[Any], None]] = set()

    def Watch(self, request: Any, context: Any, send_response_callback: Callable[[Any], None]) -> None:  # noqa: N802
        """Watch as ``HealthServicer.Watch`` does; None, given to the callback, ends the stream."""
        self._watchers.add(send_response_callback)
        super().Watch(request, context, send_response_callback)
        context.add_callback(lambda: self._watchers.discard(send_response_callback))

    def stop(self) -> None:
        """Say that nothing is served any more, and end every stream."""
        self.enter_graceful_shutdown()
        for end in tuple(self._watchers):
            end(None)
