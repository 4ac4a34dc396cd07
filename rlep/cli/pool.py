"""``rlep pool stats`` and ``rlep pool show``: a pool looked into from a terminal, without a cluster."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import typer

from rlep.actors.cluster import Cluster
from rlep.actors.pool import attached_stats, open_pool
from rlep.cli.compose import pool_directory
from rlep.cli.shell import run_async
from rlep.cli.tables import show_table
from rlep.config import Config
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.errors import ModelError, PoolError
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions, PoolStats

READING = PoolOptions(read_only=True)


def show_stats(config: Config, *, attach: str | None, as_json: bool) -> None:
    """Coverage, size and origins; ``attach`` names a run on the cluster whose pool actor is asked."""
    stats = run_async(_attached(config, attach)) if attach else _opened(config)
    if as_json:
        typer.echo(json.dumps(asdict(stats), indent=2))
        return
    typer.echo(f"pool {config.pool.name}: {stats.trajectories} trajectories, {stats.bytes / 1e6:.2f} MB of records")
    typer.echo(f"sealed: {stats.sealed or 'no'}")
    show_table([{"answers at least": str(n), "questions": str(count)} for n, count in stats.questions_with.items()])
    show_table([{"policy": name, "trajectories": str(count)} for name, count in stats.by_policy.items()])
    show_table([{"verifier": name, "trajectories": str(count)} for name, count in stats.by_verifier.items()])


def _opened(config: Config) -> PoolStats:
    with open_pool(config.pool, pool_directory(config), None, READING) as pool:
        return pool.stats()


async def _attached(config: Config, run: str) -> PoolStats:
    cluster = Cluster(config.cluster.model_copy(update={"address": config.cluster.address or "auto"}), run)
    await asyncio.to_thread(cluster.connect)
    try:
        return await attached_stats(cluster)
    finally:
        await asyncio.to_thread(cluster.close)


def show_record(config: Config, identity: str) -> None:
    """All answers of a prompt, or one answer by its content id."""
    tokenizer = _tokenizer(config)
    with open_pool(config.pool, pool_directory(config), None, READING) as pool:
        found = _find(pool, identity)
        if not found:
            raise PoolError(f"pool {config.pool.name} holds neither a prompt nor a trajectory {identity}")
        for prompt_id, content_id in found:
            _show(pool, prompt_id, content_id, tokenizer)


def _find(pool: Pool, identity: str) -> list[tuple[str, str]]:
    if of_prompt := pool.content_ids(identity):
        return [(identity, content_id) for content_id in of_prompt]
    return [(prompt, identity) for prompt in pool.prompt_ids() if identity in pool.content_ids(prompt)]


def _show(pool: Pool, prompt_id: str, content_id: str, tokenizer: Tokenizer | None) -> None:
    trajectory = pool.get(content_id, prompt_id)
    if trajectory is None:
        return
    verdict, origin = trajectory.verdict, trajectory.provenance
    typer.secho(f"{content_id}  (prompt {prompt_id})", bold=True)
    typer.echo(f"  {len(trajectory.tokens)} tokens, {verdict.status} by {verdict.verifier} {verdict.version}")
    typer.echo(
        f"  policy {origin.policy_digest} version {origin.policy_version}, temperature {origin.sampling.temperature}"
    )
    if tokenizer is not None and tokenizer.digest == origin.tokenizer_digest:
        typer.echo(f"  {tokenizer.decode(trajectory.tokens)}")
    else:
        typer.echo(f"  token ids {trajectory.tokens.tolist()} (model.path has another tokenizer)")


def _tokenizer(config: Config) -> Tokenizer | None:
    try:
        return load_tokenizer(config.model.path)
    except ModelError:
        return None
