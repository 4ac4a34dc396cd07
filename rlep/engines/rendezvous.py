"""Meeting point of the processes of one group: a store on one address of one machine.

torch's own rendezvous listens on every address of the machine and asks for no password. torch is imported when a store is
made: a rank says where it listens before the number of its threads is set.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore


def listen(address: str) -> socket.socket:
    """A socket that listens on a free port of ``address`` only."""
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def serve_store(listening: socket.socket, timeout_s: float) -> TCPStore:
    """The store of a group, which takes over the socket; returns at once. ``timeout_s``: longest wait for a key."""
    from torch.distributed import TCPStore

    address, port = listening.getsockname()[:2]
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def join_store(address: str, port: int, timeout_s: float) -> TCPStore:
    """A member's connection to the store at this address. Raises ``RuntimeError`` where none answers in time."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def store_at(meeting_point: str, world_size: int, timeout_s: float, listening: socket.socket | None = None) -> Store:
    """The store of all ranks at ``file:///new/file`` or ``tcp://host:port``; the rank that serves the latter has the socket."""
    from torch.distributed import FileStore

    place = urlsplit(meeting_point)
    if place.scheme == "file":
        return FileStore(place.path, world_size)
    if listening is not None:
        return serve_store(listening, timeout_s)
    return join_store(str(place.hostname), int(place.port or 0), timeout_s)
