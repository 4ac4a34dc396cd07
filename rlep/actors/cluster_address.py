"""The address of the Ray cluster that a command joins: its origin, and a check that something answers there."""

from __future__ import annotations

import os
import socket

from rlep.core.errors import PlacementError

VARIABLE = "RAY_ADDRESS"
CONNECT_S = 10.0
OTHERS = dict.fromkeys(("http", "https"), ", but its dashboard's") | {
    "ray": ", but of Ray Client, which streams no responses"
}
"""Scheme → what an address with it is instead."""


def joined_address(configured: str | None) -> str | None:
    """Return the configured address, else that of ``RAY_ADDRESS``; None where a private cluster is started."""
    return configured or os.environ.get(VARIABLE) or None


def named_address(configured: str | None) -> str:
    """Return the address for messages, with the variable's name where it is from there."""
    address = joined_address(configured)
    return repr(address) if configured else f"{VARIABLE} = {address!r}"


def reachable(address: str, named: str) -> bool:
    """Check that something listens there; False for ``auto``, with which Ray looks for the cluster of this machine.

    Raises ``PlacementError`` where nobody does, or it is no address of a cluster: Ray itself would try for minutes.
    """
    way = f"; without {VARIABLE} a private one is started" if named.startswith(VARIABLE) else ""
    scheme, separator, _ = address.rpartition("://")
    if separator:
        raise PlacementError(
            f"{named} is no address of a Ray cluster{OTHERS.get(scheme, '')}: it is HOST:6379 or auto on a machine of the "
            f"cluster; from outside use `rlep submit`{way}"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return False
    try:
        if int(port) >= 2**16:
            raise OSError(f"there is no port {port}")  # else the name's look-up takes another for it
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            return True
    except OSError as error:
        reason = error.strerror or str(error)
        raise PlacementError(f"no Ray cluster answers at {named}: {reason}{way}") from None
