"""Checks of the pool: that a run finds its replays in it, and that a command can write to it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from rlep.actors.cluster_address import joined_address
from rlep.algorithms.loss_values import incomparable
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.inputs import Subject
from rlep.check.pool_place import pool_exists, pool_place
from rlep.config.schema import Config
from rlep.core.episodes import played_in
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.plural import counted
from rlep.core.types import Trajectory
from rlep.data.prompts import PromptSet
from rlep.driver.mini_batch import scoring_of
from rlep.engines.tokenizer import Tokenizer
from rlep.services.environment.digest import environment_digest
from rlep.services.pool.embedded.redis_process import EmbeddedRedis, find_binary, version_of
from rlep.services.pool.rpc.places import connected, on_server, served
from rlep.services.pool.storage.checks import check_room, check_server
from rlep.services.pool.storage.connection import RetryingRedis, connect, until_deadline
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.values import PoolStats

LOOKED_AT = 256
"""Questions of which one response each is read before a run starts; a step refuses those that this does not see."""


def pool(subject: Subject) -> Iterator[Finding]:
    """Check the pool that the command reads, and the one that it writes to.

    On a cluster that is joined, the run itself finds out: the pool may be out of reach from here.
    """
    config = subject.config
    reads = subject.learns and config.replay.count and config.replay.source != "live"
    writes = subject.command == "collect" or (subject.learns and config.replay.source != "offline")
    if not (reads or writes):
        raise CheckSkipped("the command uses none")
    if joined_address(config.cluster.address) is not None:
        raise CheckSkipped("a cluster is joined, from which the run opens it")
    if reads and subject.train is not None:
        supervised = subject.command == "sft"
        yield Finding("pool", "ok", check_replays(config, subject.tokenizer, subject.train, supervised=supervised))
    if writes:
        check_place(config)
        yield Finding("pool server", "ok", f"{config.pool.url or 'an embedded Redis'} takes responses")


def check_replays(config: Config, tokenizer: Tokenizer, prompts: PromptSet, *, supervised: bool = False) -> str:
    """Return what the pool of replays has for ``prompts``; ``supervised`` as in ``check_origins``.

    Raises ``PoolError`` where it is not there, has too few responses to them or some that no step would take, or does not answer.
    """
    if not pool_exists(config):
        raise PoolError(
            f"there is no pool at {config.pool_directory}: fill it by `rlep collect` or `rlep pool import` with "
            "the same data and pool.directory first, or check pool.directory"
        )
    try:
        with served(pool_place(config), deadline=config.pool.deadline_s) as opened:
            stats = opened.open(tokenizer_digest=tokenizer.digest, read_only=True)
            covered = covered_questions(config, opened.prompt_ids(), prompts)
            check_minimum(config, stats)
            drawn = opened.sample(first_ids(prompts), 1, seed=0, step=0, minimum=config.replay.offline_minimum)
            check_origins(config, drawn, tokenizer, supervised=supervised)
            return f"{config.pool.name}: responses to {covered} of {counted(len(prompts), 'training question')}"
    except DeadlineExceeded as error:
        raise PoolError(str(error)) from None


def check_place(config: Config) -> None:
    """Raise ``ConfigError`` or ``PoolError`` where the pool that a command writes to cannot be used from here."""
    url, directory = config.pool.url, config.pool_directory
    try:
        if on_server(url):
            with connected(pool_place(config), deadline=config.pool.deadline_s) as server:
                server.names()
        elif url is not None:
            with closing(until_deadline("connecting", lambda: connect(url), deadline=config.pool.deadline_s)) as client:
                check_server(RetryingRedis(client))
                check_room(RetryingRedis(client))
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
    least = config.replay.offline_minimum
    # Statistics count questions with 1, 2, 4 and 8 responses: of the others the next smaller number tells.
    told = max(count for count in stats.questions_with if count <= least)
    if not stats.questions_with[told]:
        enough = max(count for count, questions in stats.questions_with.items() if questions)
        raise PoolError(
            f"no question of pool {config.pool.name} has the {counted(least, 'response')} that a draw needs (replay.minimum): "
            f"collect more, or set replay.minimum={enough}"
        )


def first_ids(prompts: PromptSet) -> list[str]:
    """Return the questions of which ``check_origins`` is shown a response each."""
    return [prompt.id for prompt in prompts.prompts[:LOOKED_AT]]


def check_origins(config: Config, drawn: Sample, tokenizer: Tokenizer, *, supervised: bool = False) -> None:
    """Raise ``PoolError`` where the responses drawn from the pool show some that a step may meet and would not take.

    Those are episodes of another environment than the run's, answers to prompts made otherwise, and responses whose log-probs
    cannot be compared, where the run does so; a ``supervised`` one does not.
    """
    members, name = [member for found in drawn.trajectories().values() for member in found], config.pool.name
    origins = [member.provenance for member in members]
    own = environment_digest(config.environment.factory)
    if played := Counter(one.environment_digest for one in origins if one.environment_digest != own):
        digest, count = played.most_common(1)[0]
        raise PoolError(
            f"pool {name}: {count:,} of {counted(len(origins), 'response')} looked at are {played_in(digest)}, this "
            f"run's are {played_in(own)}: set [environment] and its class's file as when they were played, or collect anew"
        )
    template_digest = tokenizer.template_digest
    others = [origin.template_digest for origin in origins if origin.prompted_otherwise(template_digest)]
    if others and config.replay.other_template == "refuse":
        raise PoolError(
            f"pool {name}: {len(others):,} of {counted(len(origins), 'response')} looked at answer prompts made by template "
            f"{min(others)}, this run's are by {template_digest}: set model.template, model.template_file, model.chat_template "
            'and model.system_prompt as when they were sampled, or replay.other_template = "render" to train them after this '
            "run's prompts"
        )
    if config.replay.compares_stored and not supervised:
        _check_logprobs(config, members, tokenizer)


def _check_logprobs(config: Config, members: Sequence[Trajectory], tokenizer: Tokenizer) -> None:
    scoring = scoring_of(config, tokenizer.digest, tokenizer.template_digest)
    if not (reasons := Counter(reason for member in members if (reason := incomparable(member, scoring)))):
        return
    stored, corrected = config.replay.old_logprobs == "behaviour", config.replay.correction is not None
    key = " and ".join(['replay.old_logprobs = "behaviour"'] * stored + ["replay.correction"] * corrected)
    remedy = " and ".join(
        ['set replay.old_logprobs = "recompute"'] * stored + ["leave replay.correction out"] * corrected
    )
    raise PoolError(
        f"pool {config.pool.name}: {reasons.total():,} of {counted(len(members), 'response')} looked at have no log-probs that "
        f"{key} can compare with the learner's ({reasons.most_common(1)[0][0]}): collect anew with "
        f'generator.dtype = "float32", collection.temperature = {config.loss_temperature:g} and collection.top_p = 1, or {remedy}'
    )


def covered_questions(config: Config, held: Iterable[str], prompts: PromptSet) -> int:
    """Return the number of ``prompts`` the pool has responses to; ``held``: its question ids. Raises ``PoolError`` for none."""
    ids = set(held)
    covered = sum(prompt.id in ids for prompt in prompts.prompts)
    if not covered:
        raise PoolError(
            f"pool {config.pool.name} at {config.pool.url or config.pool_directory} has responses to "
            f"{counted(len(ids), 'question')}, to none of the {len(prompts)} training questions: fill it by `rlep collect` or "
            "`rlep pool import` with the same data first, or check pool.directory and pool.name"
        )
    return covered
