"""Weights over gloo: every bit arrives, and whoever is missing, gone or silent is an error within the deadline."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest
import torch
from torch import Tensor
from torch.distributed import PrefixStore

from rlep.core.errors import WeightSyncError
from rlep.engines.learner.weight_sender import WeightSender
from rlep.engines.rendezvous import join_store
from rlep.engines.weights.broadcast import BroadcastMember
from rlep.engines.weights.weight_update import BroadcastGroup, TensorSpec
from tests.waiting import DEADLINE_S, wait_until

CPU = torch.device("cpu")
WEIGHTS: dict[str, Tensor] = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),  # not contiguous
    "half": torch.tensor([1.0, 1.00390625, 1 / 3]),
    "scalar": torch.tensor(7.0),
    "empty": torch.zeros(0, 3),
}
DTYPES = {"matrix": "float32", "half": "bfloat16", "scalar": "float16", "empty": "float32"}
LAYOUT = [TensorSpec(name, DTYPES[name], tuple(weight.shape)) for name, weight in WEIGHTS.items()]
LARGE = [TensorSpec(name, "float32", (64, 2**20)) for name in ("first", "second")]
"""256 MiB each: more than a socket takes that nobody reads."""


@contextmanager
def meeting(members: int, deadline_s: float = 60.0) -> Iterator[tuple[WeightSender, ThreadPoolExecutor]]:
    """A sender, and a thread for each of the other members."""
    sender = WeightSender("127.0.0.1", "gloo", 1 + members, deadline_s)
    with ThreadPoolExecutor(max(1, members)) as threads:
        yield sender, threads
        sender.close()


def receiving(group: BroadcastGroup, rank: int, layout: list[TensorSpec], rounds: int = 1) -> list[dict[str, Tensor]]:
    link = BroadcastMember(group, rank)
    received = [dict(link.receive(layout, CPU)) for _ in range(rounds)]
    link.close()
    return received


def zeros(layout: list[TensorSpec]) -> Iterator[tuple[str, Tensor]]:
    return ((spec.name, torch.zeros(spec.shape)) for spec in layout)


def test_every_member_gets_every_bit_in_the_dtype_of_the_layout_again_and_again() -> None:
    with meeting(2) as (sender, threads):
        others = [threads.submit(receiving, sender.group, rank, LAYOUT, 2) for rank in (1, 2)]
        sender.send(LAYOUT, WEIGHTS.items())
        sender.send(LAYOUT, ((name, 2 * weight) for name, weight in WEIGHTS.items()))
        for other in others:
            first, second = other.result(60)
            assert list(first) == list(WEIGHTS)
            assert all(first[spec.name].dtype == getattr(torch, spec.dtype) for spec in LAYOUT)
            assert torch.equal(first["matrix"], WEIGHTS["matrix"])
            # 8 bits of precision: 1 + 2^-8 is a tie, which goes to the even 1; 1/3 is between 85.25 and 85.5 of 2^-8
            assert first["half"].tolist() == [1.0, 1.0, 171 / 512]
            assert (first["scalar"].item(), second["scalar"].item()) == (7.0, 14.0)
            assert first["empty"].shape == (0, 3)


def test_a_member_that_never_comes_is_an_error_on_both_sides() -> None:
    with meeting(2, deadline_s=2.0) as (sender, threads):
        other = threads.submit(receiving, sender.group, 1, LAYOUT)
        with pytest.raises(
            WeightSyncError, match=r"rank 0 of 3 did not meet the others at 127\.0\.0\.1:\d+ within 2 s"
        ):
            sender.send(LAYOUT, WEIGHTS.items())
        with pytest.raises(WeightSyncError, match="rank 1 of 3 did not meet"):
            other.result(60)


def test_a_member_that_dies_while_it_joins_is_an_error_on_all_sides_within_the_deadline() -> None:
    with meeting(2, deadline_s=5.0) as (sender, threads):
        group = sender.group
        joining = multiprocessing.get_context("spawn").Process(target=BroadcastMember, args=(group, 1))
        joining.start()
        store = PrefixStore(group.token, join_store(group.host, group.port, DEADLINE_S))
        wait_until(lambda: store.num_keys() > 0, "the member to say where it listens")
        joining.kill()
        joining.join()
        other = threads.submit(receiving, group, 2, LAYOUT)
        with pytest.raises(
            WeightSyncError, match=r"rank 0 of 3 did not meet the others at 127\.0\.0\.1:\d+ within 5 s"
        ):
            sender.send(LAYOUT, WEIGHTS.items())
        with pytest.raises(WeightSyncError, match="rank 2 of 3 did not meet"):
            other.result(DEADLINE_S)


def leaving(group: BroadcastGroup) -> None:
    """Take one weight, then go."""
    link = BroadcastMember(group, 1)
    next(iter(link.receive(LARGE, CPU)))
    link.close()
    del link


def test_a_member_that_goes_in_the_middle_is_an_error_that_names_the_weight() -> None:
    with meeting(1) as (sender, threads):
        threads.submit(leaving, sender.group)
        with pytest.raises(WeightSyncError, match=r"the transfer of (first|second) broke"):
            sender.send(LARGE, zeros(LARGE))


def cut_off(group: BroadcastGroup, before: set[int]) -> None:
    """Take one weight; then the connection between the members, not that to the store, is cut: on both sides, as any is."""
    link = BroadcastMember(group, 1)
    receiving = link.receive(LARGE, CPU)
    next(receiving)
    for one in psutil.Process().net_connections("tcp"):
        connected = one.status == psutil.CONN_ESTABLISHED and one.fd not in before
        if connected and group.port not in (one.laddr.port, one.raddr.port):
            with socket.socket(fileno=os.dup(one.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            break
    try:
        next(receiving)
    finally:
        link.close()


def test_a_network_that_is_cut_in_a_transfer_is_an_error_on_both_sides_and_the_version_is_sent_again() -> None:
    before = {one.fd for one in psutil.Process().net_connections("tcp")}
    with meeting(1) as (sender, threads):
        other = threads.submit(cut_off, sender.group, before)
        with pytest.raises(WeightSyncError, match=r"the transfer of (first|second) broke"):
            sender.send(LARGE, zeros(LARGE))
        with pytest.raises(WeightSyncError, match="the transfer of second broke"):
            other.result(DEADLINE_S)
    with meeting(1) as (sender, threads):
        again = threads.submit(receiving, sender.group, 1, LAYOUT)
        sender.send(LAYOUT, WEIGHTS.items())
        (received,) = again.result(DEADLINE_S)
        assert torch.equal(received["matrix"], WEIGHTS["matrix"])


def test_a_silent_member_is_an_error_after_the_deadline() -> None:
    with meeting(1, deadline_s=3.0) as (sender, threads):
        silent: Future[BroadcastMember] = threads.submit(BroadcastMember, sender.group, 1)
        with pytest.raises(WeightSyncError, match=r"first (was not transferred within 3 s|broke)"):
            sender.send(LARGE, zeros(LARGE))
        silent.result(60).close()


def test_weights_that_do_not_follow_the_layout_are_not_sent() -> None:
    with meeting(1, deadline_s=3.0) as (sender, threads):
        other = threads.submit(receiving, sender.group, 1, LAYOUT)
        items = list(WEIGHTS.items())
        with pytest.raises(WeightSyncError, match="next weight is"):
            sender.send(LAYOUT, [items[0], items[2]])
        with pytest.raises(WeightSyncError, match="half"):
            other.result(60)


def test_who_does_not_know_the_groups_name_does_not_get_in() -> None:
    with meeting(1, deadline_s=2.0) as (sender, threads):
        group = sender.group
        guess = BroadcastGroup(group.backend, group.host, group.port, "0" * 32, 1, group.world_size, group.deadline_s)
        other = threads.submit(receiving, guess, 1, LAYOUT)
        with pytest.raises(WeightSyncError, match="did not meet"):
            sender.send(LAYOUT, WEIGHTS.items())
        with pytest.raises(WeightSyncError, match="did not meet"):
            other.result(60)
