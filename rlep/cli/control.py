"""``rlep status``, ``rlep scale`` and ``rlep drain``: a running run, looked at and changed from another process."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from rlep.actors.contact import CONTACT, read_contact
from rlep.actors.timeline import busy_shares, write_trace
from rlep.cli.shell import run_async
from rlep.cli.tables import show_table
from rlep.errors import ConfigError

if TYPE_CHECKING:
    from rlep.actors.cluster import Cluster
    from rlep.actors.control import Command, RunStatus

LOOK_S = 20.0
"""How long a driver gets to say what it is doing."""
CHANGE_S = 900.0
"""How long a driver gets for a change: to place and start a generator, or to let one finish."""
NEWS_S = 3.0
"""Time between two looks at actors that are still on their way."""


def show_status(run: str, *, address: str | None, as_json: bool) -> None:
    """Print what every actor of a run does."""
    cluster = _cluster(run, address)
    from rlep.actors.control import Look

    status = run_async(_asked(cluster, Look()))
    if as_json:
        typer.echo(json.dumps({"run": status.run, "roles": [asdict(role) for role in status.roles]}, indent=2))
    else:
        _show(status)


def save_timeline(run: str, out: Path, *, address: str | None) -> None:
    """Write the trace of the last steps, and print how much of the time every actor had work."""
    cluster = _cluster(run, address)
    from rlep.actors.control import Look

    spans = run_async(_asked(cluster, Look(spans=True))).spans
    write_trace(out, spans)
    show_table([{"actor": actor, "busy": f"{100 * share:.0f} %"} for actor, share in busy_shares(spans).items()])
    typer.echo(f"timeline: {out} ({len(spans)} spans; https://ui.perfetto.dev opens it)")


def change_count(
    run: str, role: Literal["generators", "verifiers"], count: int, *, address: str | None, grace_s: float
) -> None:
    """Bring a role of a run to ``count`` actors, and print the status afterwards."""
    cluster = _cluster(run, address)
    from rlep.actors.control import Scale

    _show(run_async(_asked(cluster, Scale(role, count, grace_s))))


def drain_actor(run: str, actor: str, *, address: str | None, grace_s: float) -> None:
    """Let one actor of a run leave, and print the status afterwards."""
    cluster = _cluster(run, address)
    from rlep.actors.control import Drain

    _show(run_async(_asked(cluster, Drain(actor, grace_s))))


async def _asked(cluster: Cluster, command: Command) -> RunStatus:
    await asyncio.to_thread(cluster.connect)
    try:
        return await _answer(cluster, command)
    finally:
        await asyncio.to_thread(cluster.close)


async def _answer(cluster: Cluster, command: Command) -> RunStatus:
    """The answer; meanwhile news of actors that wait for room on the cluster."""
    from rlep.actors.control import Look, ask

    if isinstance(command, Look):
        return await ask(cluster, command, deadline_s=LOOK_S)
    doing = asyncio.create_task(ask(cluster, command, deadline_s=CHANGE_S))
    told = ""
    try:
        while not (await asyncio.wait({doing}, timeout=NEWS_S))[0]:
            status = await ask(cluster, Look(), deadline_s=LOOK_S)
            moving = [
                f"{actor.name} is {actor.state}" + (f": {actor.error}" if actor.state == "placing" else "")
                for role in status.roles
                for actor in role.actors
                if actor.state in ("placing", "starting", "leaving")
            ]
            news = "; ".join([*moving[:3], *([f"{len(moving) - 3} more"] if len(moving) > 3 else [])])
            if news not in ("", told):
                typer.echo(news, err=True)
            told = news
    except BaseException:
        doing.cancel()
        raise
    return await doing


def _cluster(run: str, address: str | None) -> Cluster:
    """The cluster of a run, given by its directory or by its name; the environment is set before Ray is imported."""
    contact = read_contact(Path(run))
    if contact is None and Path(run).is_dir():
        raise ConfigError(
            f"no run is going on in {run}: {CONTACT} is not there (it has ended, or its actors are still starting)"
        )
    if contact is not None and contact.token_file is not None:
        if contact.host != platform.node():
            raise ConfigError(f"{run} runs on a private cluster of {contact.host}: ask on that machine")
        if not os.access(contact.token_file, os.R_OK):
            raise ConfigError(f"{run} was killed, or belongs to another user: {contact.token_file} cannot be read")
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": contact.token_file}
    from rlep.actors.cluster import Cluster
    from rlep.config_roles import ClusterConfig

    if contact is not None:
        return Cluster(ClusterConfig(address=contact.address), contact.run)
    return Cluster(ClusterConfig(address=address or os.environ.get("RAY_ADDRESS", "auto")), run)


def _show(status: RunStatus) -> None:
    versions = [actor.version for role in status.roles for actor in role.actors if actor.version is not None]
    typer.echo(f"{status.run}: policy version {max(versions, default='none yet')}")
    show_table(
        [
            {
                "actor": actor.name,
                "state": actor.state,
                "version": "" if actor.version is None else str(actor.version),
                "in flight": str(actor.in_flight),
                "tokens/s": "" if actor.tokens_per_second is None else f"{actor.tokens_per_second:,.0f}",
                "restarts": str(actor.restarts),
            }
            for role in status.roles
            for actor in role.actors
        ]
    )
    for role in status.roles:
        if role.role == "generator":
            again = f"{role.reissued.retried} given out again, {role.reissued.dropped} answers dropped"
            typer.echo(f"requests: {role.backlog} waiting for a generator, {again}")
        elif role.role == "verifier":
            typer.echo(f"verdicts: {role.backlog} calls waiting for a verifier")
    for name, error in [(actor.name, actor.error) for role in status.roles for actor in role.actors if actor.error]:
        typer.echo(f"{name}: {error.splitlines()[-1]}")
