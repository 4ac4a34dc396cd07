"""From the config to the options of generators and learners."""

from __future__ import annotations

from typing import Literal

from rlep.actors.weight_sync import GroupOptions
from rlep.algorithms.objective import LossOptions
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.engines.learner.options import LearnerOptions, LoraOptions, OptimizerOptions, PolicyOptions
from rlep.engines.sampler.setup import SamplerOptions

PROBES = 4
"""Sequences of the log-prob check."""


def check_options(config: Config) -> None:
    """Raise ``ConfigError`` where generators or learners would refuse their options."""
    sampler_options(config)
    learner_options(config)


def sampler_options(config: Config) -> SamplerOptions:
    """The generator section for the engine."""
    role, rollout = config.generator, config.rollout
    cuda = role.gpus > 0
    if cuda and role.gpus != role.tensor_parallel:
        raise ConfigError(
            f"generator.tensor_parallel = {role.tensor_parallel} on GPUs needs generator.gpus = {role.tensor_parallel}, "
            f"it is {role.gpus:g}"
        )
    check_transfer(config)
    return SamplerOptions(
        max_model_len=config.data.max_prompt_tokens + rollout.max_tokens,
        device="cuda" if cuda else "cpu",
        dtype=generator_dtype(config),
        transfer=role.transfer,
        on_update=rollout.partial if rollout.max_staleness else "wait",
        # The log-prob check must not wait for responses that are being generated.
        max_num_seqs=role.max_sequences + (PROBES if rollout.max_staleness else 0),
        max_num_batched_tokens=role.max_batched_tokens,
        kv_cache_gib=role.kv_cache_gib,
        threads=role.threads or max(1, int(_cpus_of_generator(config))),
        gpu_memory_utilization=role.memory_utilization,
        tensor_parallel=role.tensor_parallel,
        sleeps=config.cluster.placement == "colocated",
        enforce_eager=role.eager,
        seed=config.run.seed,
    )


def group_options(config: Config) -> GroupOptions | None:
    """How learner and generators meet; None where weights go through shared memory."""
    role = config.generator
    if role.transfer == "shared_memory":
        return None
    return GroupOptions(role.transfer, role.tensor_parallel, role.transfer_deadline_s)


def check_transfer(config: Config) -> None:
    """Raise ``ConfigError`` where the transport of the weights does not suit the devices."""
    transfer = config.generator.transfer
    devices = {"generator": config.generator.gpus > 0, "learner": config.learner.gpus > 0}
    if transfer == "nccl" and not all(devices.values()):
        lacking = " and ".join(f"{name}.gpus" for name, cuda in devices.items() if not cuda)
        raise ConfigError(f'generator.transfer = "nccl" needs {lacking}; "shared_memory" and "gloo" do without')
    if transfer == "gloo" and any(devices.values()):
        raise ConfigError(
            'generator.transfer = "gloo" is for CPUs; with GPUs take "nccl", or "shared_memory" on one machine'
        )


def generator_dtype(config: Config) -> Literal["float32", "bfloat16", "float16"]:
    """What ``auto`` means on this device."""
    if config.generator.dtype == "auto":
        return "bfloat16" if config.generator.gpus > 0 else "float32"
    return config.generator.dtype


def _cpus_of_generator(config: Config) -> float:
    """A generator's own, or, taking turns with learner ranks, theirs where those are more."""
    own, shared = config.generator.cpus, config.generator.tensor_parallel * config.learner.cpus
    return max(own, shared) if config.cluster.placement == "colocated" else own


def _cpus_of_rank(config: Config) -> float:
    """A rank's own, or, taking turns with a generator, its part of the generator's where that is more."""
    own, shared = config.learner.cpus, config.generator.cpus / config.generator.tensor_parallel
    return max(own, shared) if config.cluster.placement == "colocated" else own


def learner_options(config: Config) -> LearnerOptions:
    """The learner, update and loss sections for the ranks."""
    role, update, loss = config.learner, config.update, config.loss
    cuda = role.gpus > 0
    if role.gpus not in (0, 1):
        raise ConfigError(
            f"learner.gpus = {role.gpus:g}: a rank computes on one GPU, which NCCL lets no two ranks share; set it to 1, or 0 "
            "for CPUs, and learner.ranks to the number of GPUs"
        )
    dtype = ("bfloat16" if cuda else "float32") if role.dtype == "auto" else role.dtype
    return LearnerOptions(
        policy=PolicyOptions(
            dtype=dtype,
            activation_checkpointing=role.activation_checkpointing,
            reshard_after_forward=role.reshard_after_forward,
            unsharded_gradients=role.unsharded_gradients,
            cpu_offload=role.cpu_offload,
            compile=role.compile,
            lora=LoraOptions(role.lora_rank, role.lora_alpha, role.lora_targets, config.run.seed)
            if role.lora_rank
            else None,
        ),
        optimizer=OptimizerOptions(
            lr=update.lr,
            betas=update.betas,
            weight_decay=update.weight_decay,
            clip_norm=update.clip_norm,
            unit=update.unit,
            warmup=update.warmup,
            schedule=update.schedule,
            total=config.run.steps * (config.rollout.prompts // update.prompts if update.unit == "updates" else 1),
            floor=update.floor,
        ),
        loss=LossOptions(
            **loss.model_dump(),
            fixed_length=config.rollout.max_tokens if loss.aggregation == "fixed-length" else None,
            replay_weight=config.replay.weight,
            replay_shaping=config.replay.shaping,
            replay_is_cap=config.replay.is_cap,
        ),
        reference=config.model.path.absolute() if loss.kl_coef else None,
        replicas=role.replicas,
        device="cuda" if cuda else "cpu",
        micro_batch_tokens=role.micro_batch_tokens,
        # On a GPU some seconds. A CPU would take minutes, and swaps before it fails.
        longest_sequence=config.data.max_prompt_tokens + config.rollout.max_tokens if cuda else 0,
        threads=role.threads or max(1, int(_cpus_of_rank(config))),
        collective_timeout_s=role.collective_timeout_s,
        keep_start_weights=update.stream and update.prompts < config.rollout.prompts,
        seed=config.run.seed,
    )
