"""A check of a pool itself: its server, its seal, its counters and every record. It reads all of them: some seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlep.actors.cluster_address import joined_address
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.pool_place import pool_exists, pool_place
from rlep.config.schema import Config
from rlep.core.errors import DeadlineExceeded, ModelError, PoolError, WrongVersionError
from rlep.core.plural import counted
from rlep.engines.tokenizer import load_tokenizer, vocabulary_size
from rlep.hub.resolve import model_directory
from rlep.services.pool.maintenance.check_records import Checked, check_records
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.rpc.places import served
from rlep.services.pool.values import PoolStats

if TYPE_CHECKING:  # `rlep pool prune --damaged` has no model's shape
    from rlep.check.inputs import Subject

EXAMPLES = 5
"""Damaged records that are named."""


def pool_records(subject: Subject) -> Iterator[Finding]:
    """Check every record of the pool that is configured, where there is one."""
    config = subject.config
    if joined_address(config.cluster.address) is not None or not pool_exists(config):
        raise CheckSkipped(f"there is no pool at {config.pool_directory}")
    try:
        with served(pool_place(config), deadline=config.pool.deadline_s) as pool:
            stats = pool.open(read_only=True)
            yield from _state(config, pool, stats)
            vocabulary = known_vocabulary(config, stats)
            yield from _records(check_records(pool, repair=False, vocabulary=vocabulary), vocabulary)
    except (PoolError, DeadlineExceeded) as error:
        yield Finding("pool records", "wrong", str(error))


def known_vocabulary(config: Config, pool: PoolStats) -> int | None:
    """Return the number of token ids: the pool's own, else that of model.path if the pool has its tokenizer."""
    if pool.vocabulary is not None:
        return pool.vocabulary
    try:
        model = model_directory(config.model, weights=False)
        same = load_tokenizer(model).digest == pool.tokenizer_digest
    except (ModelError, WrongVersionError):  # a client without transformers has no tokenizer to compare
        return None
    return vocabulary_size(model) if same else None


def _state(config: Config, pool: PoolClient, stats: PoolStats) -> Iterator[Finding]:
    limit = f" of {stats.redis_limit / 1e6:.1f} MB" if stats.redis_limit else ", no limit set"
    start = time.perf_counter()
    # A call that reaches Redis: what a training step's draw begins with.
    digest = pool.digest()
    took = 1000 * (time.perf_counter() - start)
    yield Finding("pool server", "ok", f"answers in {took:.2f} ms, {stats.redis_bytes / 1e6:.1f} MB used{limit}")
    sealed = f"sealed with {stats.sealed}, which its content matches" if stats.sealed else "open"
    yield Finding("pool content", "ok", f"{pool.name}, {sealed}, digest {digest}")
    stated, path = f"the pool's writer stated {stats.tokenizer_digest}", config.model.path
    remedy = (
        "set model.path to the model that wrote the responses; a Python client states its tokenizer as "
        "Provenance.tokenizer_digest = rlep.load_tokenizer(MODEL_DIR).digest"
    )
    try:
        own = load_tokenizer(model_directory(config.model, weights=False)).digest
    except (ModelError, WrongVersionError):
        yield Finding("pool tokenizer", "skipped", f"{stated}; model.path = {path} has no tokenizer", remedy)
        return
    if own != stats.tokenizer_digest:
        yield Finding("pool tokenizer", "wrong", f"{stated}; model.path = {path} has {own}", remedy)
    else:
        yield Finding("pool tokenizer", "ok", f"that of model.path = {path}")


def _records(found: Checked, vocabulary: int | None) -> Iterator[Finding]:
    if found.records == found.counted:
        detail = f"{counted(found.counted, 'trajectory')}, {found.quarantined} quarantined"
        yield Finding("pool counters", "ok", detail)
    else:
        detail = f"records: {found.records}, by the counters: {found.counted}"
        remedy = "harmless while somebody writes; else export the pool and import it under a new name"
        yield Finding("pool counters", "ok", detail, remedy)
    if found.damaged:
        named = "; ".join(
            f"{content_id} of prompt {prompt}: {reason}" for prompt, content_id, reason in found.examples[:EXAMPLES]
        )
        remedy = "`rlep pool prune --damaged` removes them; importing an earlier export brings those back that were whole in it"
        yield Finding("pool records", "wrong", f"{found.damaged} damaged: {named}", remedy)
        return
    if vocabulary is None:
        detail = (
            "every checksum and content id matches; token ids were not checked: nobody stated the pool's number of ids"
        )
        remedy = (
            "set model.path to the model that wrote the responses; a Python client states it as PoolClient(vocabulary=)"
        )
        yield Finding("pool records", "ok", detail, remedy)
        return
    detail = f"every checksum and content id matches; every token id is below {vocabulary}"
    yield Finding("pool records", "ok", detail)
