"""Check of Triton, whose kernels vLLM runs on GPUs with and without graphs."""

from __future__ import annotations

import time

from rlep.check.finding import CheckSkipped
from rlep.check.parts.outcome import CheckFailed
from rlep.check.parts.synthetic import Rig


def kernel(rig: Rig) -> str:
    """Compile one trivial kernel and its launcher, and run it."""
    learner = rig.config.learner
    if not (rig.config.generator.gpus or (learner.gpus and learner.compile)):
        raise CheckSkipped("generator.gpus is 0: vLLM runs no Triton on CPUs")
    from rlep.check.parts.triton_kernel import run_doubled

    begun = time.perf_counter()
    if not run_doubled():
        raise CheckFailed("a Triton kernel that doubles its input does not")
    return f"Triton compiles and runs a kernel in {time.perf_counter() - begun:.1f} s"
