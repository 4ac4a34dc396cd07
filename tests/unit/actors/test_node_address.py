"""Which network interface groups use: the one with the node's address, unless the environment says otherwise."""

from __future__ import annotations

import os

import psutil
import pytest

from rlep.actors import node_address
from rlep.core.errors import PlacementError


@pytest.mark.parametrize("name", node_address.SETTINGS)
def test_groups_use_the_interface_of_the_node_and_a_variable_that_is_set_stays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loopback = next(
        key for key, found in psutil.net_if_addrs().items() if "127.0.0.1" in [one.address for one in found]
    )
    monkeypatch.setattr(node_address, "node_address", lambda: "127.0.0.1")
    for one in node_address.SETTINGS:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "eth7")
    node_address.use_node_interface()
    expected = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": f"={loopback}", name: "eth7"}
    assert {one: os.environ[one] for one in node_address.SETTINGS} == expected


def test_an_address_that_no_interface_has_is_refused_with_the_settings_that_help() -> None:
    with pytest.raises(
        PlacementError, match=r"the address 203\.0\.113\.9 .*--node-ip-address, or set GLOO_SOCKET_IFNAME"
    ):
        node_address.interface_of("203.0.113.9")
