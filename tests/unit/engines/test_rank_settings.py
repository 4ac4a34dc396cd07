"""What a process is told before it joins a group: the interface with the node's address, and how torch allocates."""

from __future__ import annotations

import psutil
import pytest

from rlep.config.roles import LearnerConfig
from rlep.core.errors import PlacementError
from rlep.engines.learner.allocator import NAMES, allocator_settings
from rlep.engines.rendezvous import SETTINGS, interface_of, interface_settings


@pytest.mark.parametrize("name", SETTINGS)
def test_groups_use_the_interface_of_the_address_and_a_variable_that_is_set_stays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loopback = next(
        key for key, found in psutil.net_if_addrs().items() if "127.0.0.1" in [one.address for one in found]
    )
    for other in SETTINGS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "eth7")
    expected = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": f"={loopback}"}
    del expected[name]
    assert interface_settings("127.0.0.1") == expected


def test_an_address_that_no_interface_has_is_refused_with_the_settings_that_help() -> None:
    with pytest.raises(
        PlacementError, match=r"the address 203\.0\.113\.9 .*--node-ip-address, or set GLOO_SOCKET_IFNAME"
    ):
        interface_of("203.0.113.9")


def test_pinned_memory_is_rounded_up_only_where_every_update_copies_all_gradients_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    exact = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_max_cached_size_mb:1"}
    assert allocator_settings(LearnerConfig()) == exact
    assert allocator_settings(LearnerConfig(cpu_offload=True, lora_rank=8)) == exact
    assert allocator_settings(LearnerConfig(cpu_offload=True)) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize("name", NAMES)
def test_an_allocator_that_the_user_has_set_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in NAMES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert allocator_settings(LearnerConfig()) == {}
