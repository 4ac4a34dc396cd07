"""Every part of a run, tried in the order in which a run would meet it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlep.actors.cluster_address import joined_address
from rlep.check.finding import Finding
from rlep.check.parts.generator_checks import generator, preemption
from rlep.check.parts.kernel_check import kernel
from rlep.check.parts.learner_checks import MAKING_S, attention, gradients, longest_rows, network, state
from rlep.check.parts.memory_check import memory
from rlep.check.parts.outcome import Check
from rlep.check.parts.room import room
from rlep.check.parts.synthetic import Rig, build_model
from rlep.check.parts.transfer_checks import lost_member, weights
from rlep.check.parts.turns_check import turns
from rlep.config.schema import Config
from rlep.core.paths import private_directory
from rlep.core.variables import variables
from rlep.engines.rendezvous import interface_settings
from rlep.hub.resolve import model_directory

Part = tuple[Callable[[Rig], str], str]
"""A check, and what to do when it fails."""

PARTS: tuple[Part, ...] = (
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
    (turns, "learner and generators cannot share a device by time here: set cluster.placement = split"),
)


def try_parts(config: Config, begun: Callable[[str], None]) -> Iterator[Finding]:
    """Try each part; ``begun`` is told its name before. What a part wrote is deleted as it ends.

    Raises ``ModelError`` where ``model.path`` has no shape and tokenizer to take.
    """
    deadline = MAKING_S + config.generator.start_deadline_s + config.generator.transfer_deadline_s
    interface = interface_settings(_address(config))
    # What a killed process left is removed as the directories are made.
    places = [private_directory("check"), private_directory("check", in_memory=True)]
    with _scratch(places[0]) as home, _scratch(places[1]) as shared:
        if (space := room(config, home, shared)) is not None:
            yield space
            if space.level == "wrong":
                return
        build_model(model_directory(config.model), home / "model")
        for check, remedy in PARTS:
            title = check.__name__.replace("_", " ")
            begun(title)
            with _scratch(home / check.__name__) as disk, _scratch(shared / check.__name__) as in_memory:
                rig = Rig(config, home / "model", disk, in_memory)
                with variables(interface):
                    found = Check(title, partial(check, rig), remedy, deadline).finding()
            yield found


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """The directory for the length of the block."""
    directory.mkdir(exist_ok=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _address(config: Config) -> str:
    """The address of this machine in the Ray cluster of a run."""
    if joined_address(config.cluster.address) is None:
        return "127.0.0.1"
    from rlep.actors.node_address import node_address  # loads Ray, which nothing else here needs

    return node_address()
