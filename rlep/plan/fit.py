"""Fit of a run's learner and generators into the memory there is, and the settings that help where they do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations

from rlep.config.schema import Config
from rlep.config.settings import as_override
from rlep.core.plural import sized
from rlep.plan.learner import plan_learner
from rlep.plan.memory import PROCESS_BYTES, plan_memory
from rlep.plan.model_shape import ModelShape, undivided, width_of

HOST_PROCESS_BYTES = 2**29
"""Host memory of a process on CPUs beside its tensors: the code of torch, vLLM and transformers."""

NO_CACHE = "a generator's weights leave no KV cache for one sequence of greatest length"

Change = tuple[str, str, object]
"""Section, key and value of an override."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes of one GPU by who works on it, and the verdict."""

    learner_bytes: int
    """While a rank trains: its peak and, colocated, what the sleeping generator keeps. Without GPUs: all ranks on the host."""
    generator_bytes: int
    """While a generator serves: its share and, colocated, what the sleeping rank keeps. Without GPUs: all on the host."""
    fits: bool | None
    """None where the memory there is is not known: CPUs of a cluster that is joined."""
    reason: str
    """The numbers; where it does not fit also what helps."""


def plan_fit(config: Config, shape: ModelShape, *, gpu_bytes: int, host_bytes: int | None) -> Fit:
    """The verdict for GPUs of ``gpu_bytes`` each, or for actors on CPUs of a machine with ``host_bytes`` (None: not known)."""
    found = _fit(config, shape, gpu_bytes, host_bytes)
    return found if found.fits is not False else _with_remedy(found, config, shape, gpu_bytes, host_bytes)


def lowering_settings(config: Config) -> list[str]:
    """Overrides that lower a rank's peak, the cheapest first; more ranks always do."""
    found = [_text(change) for change in _changes(config) if change[0] == "learner"]
    return [*found, _text(("learner", "ranks", 2 * config.learner.ranks))]


def _fit(config: Config, shape: ModelShape, gpu_bytes: int, host_bytes: int | None) -> Fit:
    learner, generator = config.learner, config.generator
    rank, memory = plan_learner(config, shape), plan_memory(config, shape, gpu_bytes)
    asleep = PROCESS_BYTES if config.cluster.placement == "colocated" else 0
    training, serving, lacking = 0, 0, []
    if learner.gpus:
        training = rank.peak_bytes - rank.host_bytes + PROCESS_BYTES + asleep
        if training > gpu_bytes:
            lacking.append(f"a learner rank needs {sized(training)} of a GPU's {sized(gpu_bytes)} while it trains")
    if generator.gpus:
        serving = int(gpu_bytes * generator.memory_utilization) + asleep
        if serving > gpu_bytes:
            lacking.append(
                f"a generator takes {sized(serving)} of a GPU's {sized(gpu_bytes)} (generator.memory_utilization = "
                f"{generator.memory_utilization:g}), the sleeping rank's {sized(asleep)} included"
            )
        if memory.kv_sequences < 1:
            lacking.append(NO_CACHE)
    known = True
    if not (learner.gpus or generator.gpus):
        weights = shape.parameters * width_of(generator.compute_dtype)
        training = learner.ranks * (rank.peak_bytes + HOST_PROCESS_BYTES)
        serving = generator.count * (weights + int(generator.kv_cache_gib * 2**30) + HOST_PROCESS_BYTES)
        known = host_bytes is not None
        if host_bytes is not None and training + serving > host_bytes:
            lacking.append(f"the actors need {sized(training + serving)} of this machine's {sized(host_bytes)}")
    if lacking:
        return Fit(training, serving, False, " and ".join(lacking))
    what = "of host memory in all"
    if learner.gpus or generator.gpus:
        what = f"of a GPU's {sized(gpu_bytes)}"
        host = max(rank.host_bytes, rank.asleep_bytes if asleep else 0)
        if learner.gpus and host:
            what += f", and {sized(host)} of host memory for each rank"
    return Fit(training, serving, known or None, f"learner {sized(training)}, generator {sized(serving)} {what}")


def _with_remedy(found: Fit, config: Config, shape: ModelShape, gpu_bytes: int, host_bytes: int | None) -> Fit:
    """``found`` with the fewest changes that make it fit."""
    changes = [(change,) for change in _changes(config)] + _more_gpus(config, shape)
    share = int(20 * (1 - PROCESS_BYTES / gpu_bytes)) / 20
    if config.cluster.placement == "colocated" and 0 < share < config.generator.memory_utilization:
        changes.append((("generator", "memory_utilization", share),))

    def helps(chosen: tuple[Change, ...]) -> bool:
        return _fit(_changed(config, chosen), shape, gpu_bytes, host_bytes).fits is True

    sets = (chosen for count in range(1, len(changes) + 1) for chosen in combinations(changes, count))
    remedy = next((chosen for chosen in (tuple(chain(*one)) for one in sets) if helps(chosen)), None)
    if remedy is not None:
        return replace(found, reason=f"{found.reason}; try {' '.join(map(_text, remedy))}")
    others = ["more memory or a smaller model"]
    if NO_CACHE in found.reason:
        others.insert(0, "more GPUs for a generator (generator.tensor_parallel)")
    if found.reason != NO_CACHE and not config.learner.lora_rank:
        others.insert(0, "LoRA (learner.lora_rank = 32)")
    none = "no setting" if len(others) == 1 else "no other setting"
    return replace(found, reason=f"{found.reason}; try {', '.join(others)}: {none} helps")


def _more_gpus(config: Config, shape: ModelShape) -> list[tuple[Change, ...]]:
    """The same GPUs for fewer generators, each on two, four or eight times as many."""
    generator, learner = config.generator, config.learner
    found: list[tuple[Change, ...]] = []
    for factor in (2, 4, 8) if generator.gpus else ():
        width = generator.tensor_parallel * factor
        together = config.cluster.placement == "split" or not learner.shards % width
        if together and not generator.count % factor and not undivided(shape, width):
            wider = {"tensor_parallel": width, "gpus": width, "count": generator.count // factor}
            found.append(tuple(("generator", key, value) for key, value in wider.items()))
    return found


def _changes(config: Config) -> list[Change]:
    """Settings of the learner that lower its peak and are not set yet, the cheapest first."""
    learner = config.learner
    found: list[Change] = []
    if learner.unsharded_gradients:
        found.append(("learner", "unsharded_gradients", False))
    if not learner.activation_checkpointing:
        found.append(("learner", "activation_checkpointing", True))
    if learner.micro_batch_tokens > config.context:
        found.append(("learner", "micro_batch_tokens", config.context))
    if not learner.reshard_after_forward:
        found.append(("learner", "reshard_after_forward", True))
    if learner.gpus and not learner.cpu_offload:
        found.append(("learner", "cpu_offload", True))
    return found


def _changed(config: Config, changes: tuple[Change, ...]) -> Config:
    for section, key, value in changes:
        config = config.with_values(**{section: {key: value}})
    return config


def _text(change: Change) -> str:
    section, key, value = change
    return as_override(f"{section}.{key}", value)
