"""What surrounds vLLM's own NCCL weight transfer: the barrier before it, what vLLM is told, and the end of one that hangs.

The transfer itself needs two GPUs: python -m pytest tests/engines/sampler/test_sampler_group.py -k nccl
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from inspect import signature
from typing import Any

import pytest
import torch

from rlep.core.errors import WeightSyncError
from rlep.engines.sampler.weight_loading import init_info, update_info
from rlep.engines.weights.broadcast import Barrier, Meeting
from rlep.engines.weights.nccl import NcclSender, cast_weights
from rlep.engines.weights.weight_update import BroadcastGroup, TensorSpec, WeightUpdate

pytestmark = pytest.mark.timeout(300)
LAYOUT = (TensorSpec("matrix", "float32", (4, 3)), TensorSpec("half", "bfloat16", (3,)))
MATRIX = torch.arange(12, dtype=torch.float32).reshape(3, 4).t()  # not contiguous
WEIGHTS = [("matrix", MATRIX), ("half", torch.tensor([1.0, 1.00390625, 1 / 3]))]


def group_of(meeting: Meeting, first_rank: int) -> BroadcastGroup:
    """As a generator gets it, through Ray."""
    group = meeting.group
    return BroadcastGroup(group.backend, group.host, group.port, group.token, first_rank, 4, group.deadline_s)


def test_the_barrier_opens_for_each_transfer_when_all_workers_of_all_generators_are_there() -> None:
    meeting = Meeting("127.0.0.1", "nccl", 4, 60.0)
    own = Barrier(meeting.group, meeting.store)
    with ThreadPoolExecutor(2) as threads:
        pair, single = (threads.submit(Barrier, group_of(meeting, rank)).result(60) for rank in (1, 3))
        for word in ("40001", "40002"):
            arrived = [threads.submit(pair.arrive, range(1, 3)), threads.submit(single.arrive, range(3, 4))]
            own.open(word)
            assert [one.result(60) for one in arrived] == [word, word]


def test_a_generator_that_does_not_come_is_an_error_on_both_sides_before_any_collective() -> None:
    meeting = Meeting("127.0.0.1", "nccl", 4, 2.0)
    sender = NcclSender(meeting.group, meeting.store)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(Barrier(group_of(meeting, 1)).arrive, range(1, 3))
        with pytest.raises(
            WeightSyncError, match=r"rank 0 of 4 did not meet the others at 127\.0\.0\.1:\d+ within 2 s"
        ):
            sender.send(LAYOUT, WEIGHTS)
        with pytest.raises(WeightSyncError, match=r"ranks \[1, 2\] of 4 did not meet"):
            other.result(60)
    sender.close()


def test_workers_are_told_what_the_sender_does() -> None:
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferUpdateInfo
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    group = BroadcastGroup("nccl", "10.0.0.1", 4711, "token", 3, 5, 60.0)
    told = NCCLWeightTransferInitInfo(**init_info(group, 40001))
    assert (told.master_address, told.master_port, told.rank_offset, told.world_size) == ("10.0.0.1", 40001, 3, 5)
    # As vLLM's own trainer packs them, but in buffers of our size: both sides have to cut the weights at the same places.
    trainer = NCCLTrainerInitInfo("10.0.0.1", 40001, 5, rank=0)
    defaults = signature(packed_nccl_broadcast_producer).parameters
    assert told.packed is trainer.packed is True
    assert told.packed_num_buffers == defaults["num_buffers"].default == trainer.packed_num_buffers
    assert told.packed_buffer_size_bytes == 2**28
    update = NCCLWeightTransferUpdateInfo(**update_info(WeightUpdate(7, LAYOUT, group, (), 1e-4, (0,) * len(LAYOUT))))
    assert asdict(update) == {
        "names": ["matrix", "half"],
        "dtype_names": ["float32", "bfloat16"],
        "shapes": [[4, 3], [3]],
    }


def test_vllm_is_given_each_weight_in_the_layouts_order_and_dtype() -> None:
    given = dict(cast_weights(LAYOUT, iter(WEIGHTS)))
    assert list(given) == ["matrix", "half"]
    assert torch.equal(given["matrix"], MATRIX)
    # 8 bits of precision: 1 + 2^-8 is a tie, which goes to the even 1; 1/3 is between 85.25 and 85.5 of 2^-8
    assert (given["half"].dtype, given["half"].tolist()) == (torch.bfloat16, [1.0, 1.0, 171 / 512])
    with pytest.raises(WeightSyncError, match="next weight is"):
        dict(cast_weights(LAYOUT, iter(WEIGHTS[1:])))


class HeldUp:
    """vLLM's communicator with a member that died in the transfer: it ends when it is destroyed, without an error."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def broadcast(self) -> None:
        assert self._ended.wait(60)

    def destroy(self) -> None:
        self._ended.set()


class Broken(HeldUp):
    """One that fails."""

    def broadcast(self) -> None:
        raise RuntimeError("NCCL error: unhandled system error")


@pytest.mark.parametrize(
    ("communicator", "message"),
    [
        (HeldUp, "the weights were not transferred within 1 s"),
        (Broken, "the transfer over NCCL broke: NCCL error: unhandled system error"),
    ],
)
def test_a_transfer_that_a_dead_member_holds_up_or_breaks_is_an_error(
    communicator: Callable[[], HeldUp], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import nccl_common, packed_tensor

    told: list[dict[str, Any]] = []

    def joined(place: dict[str, Any]) -> HeldUp:
        told.append(place)
        return communicator()

    def produced(weights: Iterator[tuple[str, Any]], group: HeldUp, src: int, *_: Any, buffer_size_bytes: int) -> None:
        assert ([name for name, _ in weights], src, buffer_size_bytes) == (["matrix", "half"], 0, 2**28)
        group.broadcast()

    monkeypatch.setattr(nccl_common, "trainer_init", joined)
    monkeypatch.setattr(packed_tensor, "packed_nccl_broadcast_producer", produced)
    meeting = Meeting("127.0.0.1", "nccl", 4, 1.0)
    sender = NcclSender(meeting.group, meeting.store)
    with ThreadPoolExecutor(1) as threads:
        ports = threads.submit(Barrier(group_of(meeting, 1)).arrive, range(1, 4))
        with pytest.raises(WeightSyncError, match=message):
            sender.send(LAYOUT, WEIGHTS)
        port = int(ports.result(60))
    assert told == [{"master_address": "127.0.0.1", "master_port": port, "world_size": 4}]
    assert 1024 <= port < 65536
    sender.close()
