"""One trivial Triton kernel, in a module of its own: it can be imported where Triton is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 128


@triton.jit  # type: ignore[untyped-decorator]
def doubled(source: tl.tensor, target: tl.tensor, block: tl.constexpr) -> None:
    """Write twice the first ``block`` values of ``source``."""
    places = tl.arange(0, block)
    tl.store(target + places, 2.0 * tl.load(source + places))


def run_doubled() -> bool:
    """Compile the kernel, run it on the GPU and tell whether it is right."""
    source = torch.arange(BLOCK, dtype=torch.float32, device="cuda")
    target = torch.zeros_like(source)
    doubled[(1,)](source, target, BLOCK)
    return bool(torch.equal(target, 2.0 * source))
