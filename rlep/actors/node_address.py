"""The address by which this node is known in the Ray cluster: gloo and NCCL are to listen there and nowhere else."""

from __future__ import annotations

import os

import ray

from rlep.engines.rendezvous import interface_settings


def node_address() -> str:
    """Return the address of this process's node; 127.0.0.1 on a private cluster."""
    return ray.util.get_node_ip_address()


def use_node_interface() -> None:
    """Have the groups of this process and of those that it starts use the node's interface; variables that are set stay.

    Raises ``PlacementError`` where no interface has the node's address.
    """
    os.environ.update(interface_settings(node_address()))
