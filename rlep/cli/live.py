"""``rlep status``, ``timeline``, ``scale`` and ``drain``: a running run, looked at and changed from another process."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.actors.contact import CONTACT, check_private, read_contact
from rlep.actors.run_progress import ElasticRole
from rlep.actors.timeline import write_trace
from rlep.cli.shell import say_stopping
from rlep.cli.status import path_rows, share_rows, view
from rlep.cli.tables import UNLIMITED, show_table
from rlep.cli.terminal import Terminal
from rlep.core.errors import ConfigError
from rlep.core.plural import counted
from rlep.launch.event_loop import run_async
from rlep.metrics.spans import busy_shares

if TYPE_CHECKING:
    from rlep.actors.cluster import Cluster
    from rlep.actors.control import Command, RunClient, RunStatus

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or the name of a run on a cluster.")]
Elastic = Annotated[ElasticRole, typer.Argument(metavar="generators|verifiers|environments", help="The role to scale.")]
RunName = Annotated[str, typer.Option("--run", metavar="RUN", help="Run directory, or the name of a run on a cluster.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster of a run given by name; RAY_ADDRESS or auto otherwise.")]
Grace = Annotated[float, typer.Option(min=0, help="Seconds that a drained actor has to finish its work.")]

LOOK_S = 20.0
"""Deadline of a driver's status."""
CHANGE_S = 900.0
"""Deadline of a change: to place and start a generator, or to drain one."""
NEWS_S = 3.0
"""Time between two reports on actors that are starting or draining."""

KEEP_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A private cluster listens on 127.0.0.1, where Ray on Linux would otherwise put the machine's address."""


def status(run: Run, address: Address = None, as_json: AsJson = False) -> None:
    """Show every actor of a running run: state, policy version, requests in flight, speed, restarts, last error."""
    cluster = run_cluster(run, address)
    from rlep.actors.control import Look

    found = run_async(_asked(cluster, Look()), say_stopping)
    if as_json:
        shown = asdict(found)
        del shown["spans"]
        typer.echo(json.dumps(shown, indent=2))
    else:
        Terminal(width=UNLIMITED).print(view(found))


def timeline(
    run: Run,
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Chrome trace file.")] = Path("timeline.json"),
) -> None:
    """Write who did what in the last steps of a running run, as a Chrome trace for Perfetto; print the last step's times."""
    cluster = run_cluster(run, address)
    from rlep.actors.control import Look

    found = run_async(_asked(cluster, Look(spans=True)), say_stopping)
    write_trace(out, found.spans)
    show_table(share_rows(busy_shares(found.spans), "actor", "busy"))
    if found.last_step is not None:
        show_table(path_rows(found.last_step), "critical path")
        show_table(share_rows(found.last_step.idle, "role", "idle"))
    typer.echo(f"timeline: {out} ({counted(len(found.spans), 'span')}; https://ui.perfetto.dev opens it)")


def scale(
    role: Elastic,
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="The desired number.")],
    run: RunName,
    address: Address = None,
    *,
    grace: Grace = 60,
) -> None:
    """Set the number of generators, verifiers or environments of a running run; the newest are drained first."""
    cluster = run_cluster(run, address)
    from rlep.actors.control import Scale

    Terminal(width=UNLIMITED).print(view(run_async(_asked(cluster, Scale(role, count, grace)), say_stopping)))


def drain(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="A name from rlep status, e.g. generator-1.")],
    run: RunName,
    address: Address = None,
    *,
    grace: Grace = 60,
) -> None:
    """Drain one generator, verifier or environment of a running run: it finishes its work, or returns it to the queue."""
    cluster = run_cluster(run, address)
    from rlep.actors.control import Drain

    Terminal(width=UNLIMITED).print(view(run_async(_asked(cluster, Drain(actor, grace)), say_stopping)))


async def _asked(cluster: Cluster, command: Command) -> RunStatus:
    await asyncio.to_thread(cluster.connect)
    try:
        from rlep.actors.control import RunClient

        return await _answer(RunClient(cluster), command)
    finally:
        await asyncio.to_thread(cluster.close)


async def _answer(run: RunClient, command: Command) -> RunStatus:
    """The status; meanwhile reports on actors that wait for resources on the cluster."""
    from rlep.actors.control import Look

    if isinstance(command, Look):
        return await run.ask(command, deadline_s=LOOK_S)
    doing = asyncio.create_task(run.ask(command, deadline_s=CHANGE_S))
    shown = ""
    try:
        while not (await asyncio.wait({doing}, timeout=NEWS_S))[0]:
            status = await run.ask(Look(), deadline_s=LOOK_S)
            moving = [
                f"{actor.name} is {actor.state}" + (f": {actor.error}" if actor.state == "placing" else "")
                for role in status.roles
                for actor in role.actors
                if actor.state in ("placing", "starting", "leaving")
            ]
            news = "; ".join([*moving[:3], *([f"{len(moving) - 3} more"] if len(moving) > 3 else [])])
            if news not in ("", shown):
                typer.echo(news, err=True)
            shown = news
    except BaseException:
        doing.cancel()
        # Where the run ended, both have failed: one error is enough.
        await asyncio.gather(doing, return_exceptions=True)
        raise
    return await doing


def run_cluster(run: str, address: str | None, option: str = "--address") -> Cluster:
    """The cluster of a run, given by its directory or by its name; the environment is set before Ray is imported.

    ``option`` is what the user gives ``address`` by.
    """
    contact = read_contact(Path(run))
    named = address or os.environ.get("RAY_ADDRESS") or ("auto" if _started_here() else None)
    if contact is None and Path(run).is_dir():
        raise ConfigError(
            f"no run is in progress in {run}: {CONTACT} is not there (it has ended, or its actors are still starting)"
        )
    if contact is None and Path(run).name != run:
        raise ConfigError(f"{run}: no such run directory")
    if contact is None and named is None:
        raise ConfigError(
            f"no Ray cluster to look for run {run} on: a private run is found by its directory (e.g. runs/{run}); "
            f"for a run on a cluster give {option}, or set RAY_ADDRESS"
        )
    if contact is not None and contact.token_file is not None:
        if contact.host != platform.node():
            raise ConfigError(f"{run} runs on a private cluster of {contact.host}: ask on that machine")
        check_private(contact, Path(run))
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": contact.token_file, **KEEP_LOOPBACK}
        named = contact.address
    if named is None:  # whoever wrote the file could name any address, whose answers this process would unpickle
        raise ConfigError(
            f"{Path(run) / CONTACT} names the Ray cluster {contact.address if contact else ''}, which you have not: if it is "
            f"the run's, repeat the command with that {option}, or set RAY_ADDRESS"
        )
    from rlep.actors.cluster import Cluster
    from rlep.config.roles import ClusterConfig

    joined = None if named == os.environ.get("RAY_ADDRESS") else named  # errors name the variable
    return Cluster(ClusterConfig(address=joined), contact.run if contact is not None else run)


def _started_here() -> bool:
    """Tell whether ``ray start`` has left a cluster's address here, by this user or root; private clusters leave none."""
    path = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # noqa: S108 - its owner is checked
    try:
        return path.lstat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False
