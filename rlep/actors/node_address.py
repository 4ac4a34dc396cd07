"""The address by which this node is known in the Ray cluster: gloo and NCCL are to listen there and nowhere else.

Left alone, gloo takes the address of the host's name, which is 127.0.1.1 on Debian and Ubuntu, and NCCL takes any interface.
"""

from __future__ import annotations

import os

import psutil
import ray

from rlep.core.errors import PlacementError

SETTINGS = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""Environment variable → what it says of an interface; NCCL would take a bare name as a prefix."""


def node_address() -> str:
    """Return the address of this process's node; 127.0.0.1 on a private cluster."""
    return ray.util.get_node_ip_address()


def use_node_interface() -> None:
    """Have the groups of this process and of those that it starts use the node's interface; variables that are set stay.

    Raises ``PlacementError`` where no interface has the node's address.
    """
    missing = [name for name in SETTINGS if name not in os.environ]
    if not missing:
        return
    interface = interface_of(node_address())
    os.environ.update({name: SETTINGS[name].format(interface) for name in missing})


def interface_of(address: str) -> str:
    """Return the name of this machine's interface with ``address``. Raises ``PlacementError``."""
    for name, found in psutil.net_if_addrs().items():
        if address in [one.address.partition("%")[0] for one in found]:
            return name
    raise PlacementError(
        f"no network interface of this machine has the address {address} by which Ray knows it: give `ray start` the right "
        f"--node-ip-address, or set {' and '.join(SETTINGS)}"
    )
