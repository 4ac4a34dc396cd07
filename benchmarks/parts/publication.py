"""Publishing 500 M float32 weights of one rank into a segment, against copying as many bytes in memory; best of three each.

The copy goes into a buffer that is there already, as a memcpy would. ``publish_and_check_over_memcpy`` also has the digest
that a generator computes before it loads. The last line is JSON.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rlep.engines.segment import Segment, check_segment
from rlep.engines.weights import publish_segment

WEIGHTS, LAYERS = 500_000_000, 100


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="rlep-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="rlep-bench-") as home,
    ):
        dist.init_process_group("gloo", init_method=f"file://{home}/meeting", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        plain = [torch.full((WEIGHTS // LAYERS // 1000, 1000), 0.5) for _ in range(LAYERS)]
        shards = [(f"layers.{n}.weight", DTensor.from_local(one, mesh, [Shard(0)])) for n, one in enumerate(plain)]
        copy_s = copied(plain)
        path = Path(memory) / "weights"
        segments: list[Segment] = []

        def publish() -> None:
            published = publish_segment(shards, path, 1, (), "float32")
            assert published is not None
            assert isinstance(published.source, Segment)
            segments.append(published.source)

        publish_s = best(publish)
        check_s = best(lambda: check_segment(segments[-1], 1))
        dist.destroy_process_group()
    figures = {
        "publish_over_memcpy": round(copy_s / publish_s, 3),
        "publish_and_check_over_memcpy": round(copy_s / (publish_s + check_s), 3),
        "memcpy_gib_per_s": round(WEIGHTS * 4 / copy_s / 2**30, 2),
    }
    print(json.dumps(figures))


def copied(plain: list[torch.Tensor]) -> float:
    """Seconds of a copy into memory that has been touched."""
    copies = [torch.zeros_like(one) for one in plain]
    return best(lambda: [copy.copy_(one) for copy, one in zip(copies, plain, strict=True)])


def best(work: Callable[[], object]) -> float:
    """Least wall time of three."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


if __name__ == "__main__":
    main()
