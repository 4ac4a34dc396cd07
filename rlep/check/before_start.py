"""Checks before any actor starts: CPUs of this machine, the model's heads, the verifier, and the pool."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing

from rlep.actors.cluster_address import joined_address
from rlep.actors.ray_private import cores
from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, DeadlineExceeded, ModelError, PoolError
from rlep.core.plural import counted, named, sized
from rlep.data.prompts import NAMED_CHARACTERS, PromptSet
from rlep.driver.model_shape import linear_layers, read_shape, same_weights
from rlep.driver.plan_cpus import cpu_shortage
from rlep.driver.plan_fit import lowering_settings
from rlep.driver.plan_learner import plan_learner
from rlep.engines.families import CPU_HEAD_SIZES
from rlep.services.pool.embedded.redis_process import EmbeddedRedis, find_binary, version_of
from rlep.services.pool.rpc.run_pool import connected, on_server, open_run_pool
from rlep.services.pool.storage.checks import check_server
from rlep.services.pool.storage.connection import RetryingRedis, connect, until_deadline
from rlep.services.pool.values import PoolOptions, PoolStats
from rlep.services.verifier.grader import build_verifier
from rlep.services.verifier.verifier import PROFILES


def joins_cluster(config: Config) -> bool:
    """Whether a command with this config joins a Ray cluster that is there, instead of starting a private one here."""
    return joined_address(config.cluster.address) is not None


def missing_cpus(config: Config, *, learns: bool = True) -> str:
    """Why a private cluster cannot hold all actors, with the overrides that help; or an empty string.

    A cluster that is joined may be larger than this machine, and may grow: of it nothing is known here.
    """
    return "" if joins_cluster(config) else cpu_shortage(config, config.cluster.cpus or cores(), learns=learns)


def memory_here(config: Config) -> int | None:
    """Bytes of this machine's memory; None where a cluster is joined, of which nothing is known here."""
    return None if joins_cluster(config) else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_advice(config: Config) -> str:
    """What the plan says of a learner rank's memory, and the settings that lower it."""
    rank = plan_learner(config, read_shape(config.model.path))
    gathered = rank.copy_bytes + rank.reference_bytes
    return (
        f"Planned are {sized(rank.peak_bytes)} for a rank: weights and Adam {sized(rank.state_bytes)}, gradients "
        f"{sized(rank.gradient_bytes)}, gathered weights {sized(gathered)}, activations {sized(rank.activation_bytes)}, logits "
        f"and buffers {sized(rank.work_bytes)}. These lower it: {', '.join(lowering_settings(config))}. "
        "`rlep plan --gpu-memory GIB` says which of them suffice"
    )


def check_cpus(config: Config, *, learns: bool) -> None:
    """Raise ``ConfigError`` where ``missing_cpus`` finds some."""
    if missing := missing_cpus(config, learns=learns):
        raise ConfigError(missing)


def check_heads(config: Config) -> None:
    """Raise ``ModelError`` where the model's attention heads have a size that vLLM does not compute on CPUs."""
    if config.generator.gpus:
        return
    try:
        size = read_shape(config.model.path).head_dim
    except ModelError:  # vLLM serves more families than have such a shape
        return
    if size not in CPU_HEAD_SIZES:
        raise ModelError(
            f"{config.model.path} has attention heads of {size} values; vLLM on CPUs computes those of "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: take another model, or GPUs"
        )


def check_verifier(config: Config) -> None:
    """Raise ``ConfigError`` where ``verifier.profile`` cannot be had: a function that is not there, a pattern that is none.

    On a cluster that is joined, its verifiers find out: the function's module may be out of reach from here.
    """
    if config.verifier.profile in PROFILES or joins_cluster(config):
        return
    try:
        with build_verifier(config.verifier.profile, correct_at=config.verifier.correct_at) as verifier:
            verifier.check()
    except ConfigError as error:
        raise ConfigError(f"verifier.profile = {config.verifier.profile}: {error}") from None


def check_output_head(config: Config) -> None:
    """Raise ``ModelError`` where config.json ties the output head to the embedding, and the files hold another head."""
    model = config.model.path
    try:
        tied = read_shape(model).tied
    except ModelError:  # vLLM serves more families than have such a shape
        return
    if tied and not same_weights(model, "lm_head.weight", "model.embed_tokens.weight"):
        raise ModelError(
            f"{model}: config.json says tie_word_embeddings = true, and the safetensors hold an lm_head.weight that is not the "
            "embedding: set it to false there to use that head, or remove the weight"
        )


def check_lora_targets(config: Config) -> None:
    """Raise ``ConfigError`` where an adapter is asked for on a layer that the model does not have."""
    if not config.learner.lora_rank:
        return
    present = linear_layers(config.model.path)
    unknown = sorted({*config.learner.lora_targets} - {*present, "all-linear"})
    if present and unknown:
        raise ConfigError(
            f"learner.lora_targets: no linear layer of {config.model.path} is called {', '.join(unknown)}; "
            f"there are {', '.join(present)}, and all-linear for all of them"
        )


def check_watched(config: Config, prompts: PromptSet) -> None:
    """Raise ``ConfigError`` where ``rollouts.watch`` names a prompt that is not among ``prompts``."""
    known = {prompt.id for prompt in prompts.prompts}
    unknown = [one for one in config.rollouts.watch if one not in known]
    if unknown:
        ids = named([repr(one[:NAMED_CHARACTERS]) for one in unknown])
        raise ConfigError(
            f"rollouts.watch: no training question has the id {ids}; ids are in the column prompt_id of rollouts/ "
            "and on the pages of `rlep console`"
        )


def check_pool(config: Config, tokenizer_digest: str, prompts: PromptSet) -> None:
    """Raise ``PoolError`` where the pool of replays is not there, has too few responses to ``prompts``, or does not answer.

    On a cluster that is joined, the run itself finds out: the pool may be out of reach from here.
    """
    if not config.replay.count or config.replay.source == "live" or joins_cluster(config):
        return
    if not pool_exists(config):
        raise PoolError(
            f"there is no pool at {config.pool_directory}: fill it by `rlep collect` or `rlep pool import` with "
            "the same data and pool.directory first, or check pool.directory"
        )
    options = PoolOptions(read_only=True, deadline=config.pool.deadline_s)
    try:
        with closing(open_run_pool(pool_place(config), tokenizer_digest, options)) as opened:
            covered_questions(config, opened.pool.prompt_ids(), prompts)
            check_minimum(config, opened.pool.stats())
    except DeadlineExceeded as error:
        raise PoolError(str(error)) from None


def check_place(config: Config) -> None:
    """Raise ``ConfigError`` or ``PoolError`` where the pool that a command writes to cannot be used from here.

    On a cluster that is joined, the run itself finds out.
    """
    if joins_cluster(config):
        return
    url, directory = config.pool.url, config.pool_directory
    try:
        if on_server(url):
            with connected(pool_place(config), PoolOptions(deadline=config.pool.deadline_s)) as server:
                server.names()
        elif url is not None:
            with closing(until_deadline("connecting", lambda: connect(url), deadline=config.pool.deadline_s)) as client:
                check_server(RetryingRedis(client), allow_volatile=False, read_only=False)
        elif pool_exists(config):
            with EmbeddedRedis(directory):  # a damaged file is found here
                pass
        else:
            version_of(find_binary())
            place = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
            if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
                raise ConfigError(f"the pool directory {directory} cannot be made: {place} is no directory to write in")
    except DeadlineExceeded as error:
        raise PoolError(str(error)) from None


def check_minimum(config: Config, stats: PoolStats) -> None:
    """Raise ``PoolError`` where no question has as many responses as a draw needs, so far as the statistics tell."""
    least = config.replay.minimum
    told = max(count for count in stats.questions_with if count <= least)
    if not stats.questions_with[told]:
        enough = max(count for count, questions in stats.questions_with.items() if questions)
        raise PoolError(
            f"no question of pool {config.pool.name} has the {counted(least, 'response')} that a draw needs (replay.minimum): "
            f"collect more, or set replay.minimum={enough}"
        )


def pool_exists(config: Config) -> bool:
    """Whether the embedded pool's directory holds one; what is at ``pool.url`` says so itself."""
    return config.pool.url is not None or (config.pool_directory / "redis.conf").is_file()


def covered_questions(config: Config, held: Iterable[str], prompts: PromptSet) -> int:
    """How many of ``prompts`` the pool has responses to, ``held`` being its question ids. Raises ``PoolError`` for none."""
    ids = set(held)
    covered = sum(prompt.id in ids for prompt in prompts.prompts)
    if not covered:
        raise PoolError(
            f"pool {config.pool.name} at {config.pool.url or config.pool_directory} has responses to "
            f"{counted(len(ids), 'question')}, to none of the {len(prompts)} training questions: fill it by `rlep collect` or "
            "`rlep pool import` with the same data first, or check pool.directory and pool.name"
        )
    return covered
