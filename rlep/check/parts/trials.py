"""Every part of a run, tried in the order in which a run would meet it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rlep.check.finding import Finding
from rlep.check.parts.generator_checks import generator, preemption
from rlep.check.parts.kernel_check import kernel
from rlep.check.parts.learner_checks import MAKING_S, attention, gradients, longest_rows, network, state
from rlep.check.parts.memory_check import memory
from rlep.check.parts.outcome import Check
from rlep.check.parts.synthetic import Rig, build_model
from rlep.check.parts.transfer_checks import lost_member, weights
from rlep.config.schema import Config
from rlep.core.paths import private_directory

CHECKS: tuple[tuple[Callable[[Rig], str], str], ...] = (
    (attention, "torch's attention does not suit this device: update the driver and torch, or set learner.dtype"),
    (gradients, "ranks do not add up their gradients: look at NCCL_DEBUG=INFO, or try learner.ranks = 1"),
    (state, "offloading or checkpoints lose bits: run the check alone, look for other processes on the device"),
    (
        longest_rows,
        "lower learner.micro_batch_tokens or rollout.max_tokens, or set learner.activation_checkpointing = true",
    ),
    (memory, "the plan is too low for this machine: set learner.micro_batch_tokens lower than it says, and report it"),
    (
        network,
        "set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME to the interface that joins the machines; look at NCCL_DEBUG=INFO",
    ),
    (
        kernel,
        "Triton does not work here: look at what it printed; it needs gcc, Python's headers and a driver for its CUDA",
    ),
    (generator, "vLLM does not work on this machine: run with VLLM_LOGGING_LEVEL=INFO, try generator.eager = true"),
    (preemption, "vLLM loses requests that it sets back: raise generator.memory_utilization or generator.kv_cache_gib"),
    (weights, "choose another generator.transfer; make room in /dev/shm for two copies of the weights"),
    (lost_member, "a generator that dies would hold up the run: choose another generator.transfer"),
)
"""Each check with what to do when it fails."""


def try_parts(config: Config, begun: Callable[[str], None]) -> Iterator[Finding]:
    """Try each part; ``begun`` is told its name before.

    Raises ``ModelError`` where ``model.path`` has no shape and tokenizer to take.
    """
    deadline = MAKING_S + config.generator.start_deadline_s + config.generator.transfer_deadline_s
    shared = private_directory("check", in_memory=True)
    try:
        with tempfile.TemporaryDirectory(prefix="rlep-check-") as name:
            model = Path(name) / "model"
            build_model(config.model.path, model)
            for check, remedy in CHECKS:
                title = check.__name__.replace("_", " ")
                scratch = Path(name) / check.__name__
                scratch.mkdir()
                begun(title)
                rig = Rig(config, model, scratch, shared)
                yield Check(title, partial(check, rig), remedy, deadline).finding()
    finally:
        shutil.rmtree(shared, ignore_errors=True)
