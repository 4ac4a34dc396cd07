"""Meeting point of the processes of one group: a store on one address of one machine.

torch's own rendezvous listens on every address of the machine and asks for no password. torch is imported when a store is
made: a rank says where it listens before the number of its threads is set.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from rlep.core.errors import PlacementError

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

SETTINGS = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""Environment variable → what it says of an interface; NCCL would take a bare name as a prefix."""


def interface_settings(address: str) -> dict[str, str]:
    """Variables by which groups use the interface with this machine's ``address``, but for those that are set.

    Left alone, gloo takes the address of the host's name, which is 127.0.1.1 on Debian and Ubuntu, and NCCL takes any
    interface. Raises ``PlacementError`` where no interface has the address.
    """
    missing = [name for name in SETTINGS if name not in os.environ]
    interface = interface_of(address) if missing else ""
    return {name: SETTINGS[name].format(interface) for name in missing}


def interface_of(address: str) -> str:
    """Return the name of this machine's interface with ``address``. Raises ``PlacementError``."""
    for name, members in psutil.net_if_addrs().items():
        if address in [member.address.partition("%")[0] for member in members]:
            return name
    raise PlacementError(
        f"no network interface of this machine has the address {address} by which Ray knows it: give `ray start` the right "
        f"--node-ip-address, or set {' and '.join(SETTINGS)}"
    )


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
