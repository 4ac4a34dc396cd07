"""rlep commands as Ray jobs: submitted with retries, followed to their end."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from rlep.actors import job_files
from rlep.actors.cluster import TOKEN_HINT
from rlep.core.errors import INTERRUPTED, UNFOLLOWED, ConfigError, DeadlineExceeded, PlacementError

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
STOP_WAIT_S = 600
"""Seconds that ``ray job stop`` waits for a run's checkpoint; Ray kills after 3 s unless its variable says otherwise."""
PASSED_ON = ("RLEP_REDIS_PASSWORD_FILE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", STOP_WAIT)
"""Environment variables that the job and its actors inherit; those that name files on the cluster hold no secret themselves."""
SUBMIT_DEADLINE_S = 60.0
TOO_LARGE = ("HTTPRequestEntityTooLarge", "status code 413")
"""Parts of the answer of a dashboard, or of a proxy before it, to a directory that is too large: sent again it would be, too."""
FOLLOW_DEADLINE_S = 60.0
"""Longest time without an answer from the cluster of a job that is followed."""
FOLLOW_POLL_S = 1.0
DROPPED = (RuntimeError, OSError, aiohttp.ClientError)
"""Errors of Ray's client when its connection breaks, or when the dashboard has no answer; requests' errors are ``OSError``."""
CONNECT_S = 15.0
"""For the dashboard of a head that has just been started."""


def submit_job(
    arguments: Sequence[str],
    *,
    address: str = "",
    working_dir: Path = Path(),
    wait: bool = True,
    echo: Callable[[str], None] = print,
    note: Callable[[str], None] = print,
) -> int:
    """Run ``rlep ARGUMENTS…`` on a cluster; returns the exit status (0 succeeded, 1 failed, 0 at once without ``wait``).

    Ctrl-C ends following the job, not the job: the status is 130 then, and 3 where the cluster does not answer any more.

    The job works in a copy of what git tracks of ``working_dir`` and the command names; what ``job_files`` keeps here is told
    to ``note`` first.
    The cluster's token is read by Ray from ``RAY_AUTH_MODE=token`` and ``RAY_AUTH_TOKEN_PATH``.

    Raises:
        ConfigError: no arguments, no directory ``working_dir`` or one without git, no dashboard address, or more files than a
            job takes.
        PlacementError: the cluster refuses the token, or there is none.
        DeadlineExceeded: no dashboard answers in time.
        DeadlineExceeded: no job agent took the job within a minute (a cluster that has just started has none yet).
    """
    if not arguments:
        raise ConfigError("nothing to submit: rlep submit -- train CONFIG.toml")
    if not working_dir.is_dir():
        raise ConfigError(f"--working-dir {working_dir}: no such directory")
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS", "")
    if not where:
        raise ConfigError("no cluster: give --address http://HEAD:8265 or set RAY_API_SERVER_ADDRESS")
    os.environ["RAY_API_SERVER_ADDRESS"] = where  # Ray would take the cluster of RAY_ADDRESS even before an argument
    stays = job_files.withheld(working_dir, arguments)
    for line in job_files.lines(stays):
        note(line)
    runtime = {
        "working_dir": str(working_dir.resolve()),
        "excludes": job_files.excludes(stays),
        "env_vars": {STOP_WAIT: str(STOP_WAIT_S)}
        | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }
    try:
        client = _connect(where)
        job = _submit(client, shlex.join(["python", "-m", "rlep", *arguments]), runtime)
    except AuthenticationError:
        raise PlacementError(f"the cluster at {where} refuses this token: {TOKEN_HINT}") from None
    echo(f"submitted {job} to {where}")
    if not wait:
        return 0
    how = f"`ray job logs -f {job}` follows it, `ray job stop {job}` ends it"
    try:
        status = asyncio.run(_follow(client, job, echo))
    except (KeyboardInterrupt, asyncio.CancelledError):
        note(f"job {job} goes on: {how}")
        return INTERRUPTED
    except DeadlineExceeded as error:
        note(f"{error}; unless it has ended, job {job} goes on: {how}")
        return UNFOLLOWED
    echo(f"job {job}: {status.value}")
    return 0 if status == JobStatus.SUCCEEDED else 1


def _connect(address: str) -> JobSubmissionClient:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return JobSubmissionClient(address)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{address} is not the address of a dashboard (http://HEAD:8265): {error}") from None
        except ConnectionError as error:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"no Ray dashboard answers at {address} within {CONNECT_S:.0f} s: {error}"
                ) from None
            time.sleep(1)


def _submit(client: JobSubmissionClient, entrypoint: str, runtime: Mapping[str, object]) -> str:
    deadline = time.monotonic() + SUBMIT_DEADLINE_S
    # Chosen here: a retry after a lost answer submits nothing twice.
    identity = f"rlep-{int(time.time())}-{os.getpid()}"
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=dict(runtime), submission_id=identity))
        except ValueError as error:
            raise ConfigError(f"{runtime['working_dir']} cannot be uploaded: {error}") from None
        except (RuntimeError, OSError) as error:  # requests' errors are the latter
            if getattr(error, "filename", None) is not None:  # a file that cannot be read
                raise
            if "already exists" in str(error):
                return identity
            if any(part in str(error) for part in TOO_LARGE):
                raise ConfigError(
                    f"{runtime['working_dir']} is more than the cluster's dashboard takes, which is 100 MiB as an archive unless "
                    "a proxy takes less: name in .gitignore what the job does not need, or give a smaller --working-dir"
                ) from None
            if time.monotonic() > deadline:
                said = str(error).rstrip(".")
                raise DeadlineExceeded(
                    f"the cluster did not take the job within {SUBMIT_DEADLINE_S:.0f} s: {said}"
                ) from None
            time.sleep(1)


async def _follow(client: JobSubmissionClient, job: str, echo: Callable[[str], None]) -> JobStatus:
    """Show what a job prints, each part once, until it has ended; returns how.

    A stream that ends or breaks before the job is begun anew. Raises ``DeadlineExceeded`` where the cluster does not answer.
    """
    shown = 0
    away: float | None = None
    """Since when the cluster has not answered."""
    ended: JobStatus | None = None
    while True:
        stream, read, whole = client.tail_job_logs(job), 0, False  # each stream begins with the first line
        while not whole:
            try:
                text = await anext(stream)
            except StopAsyncIteration:
                whole = True
            except DROPPED:
                break
            else:
                new, read = text[max(0, shown - read) :], read + len(text)
                shown = max(shown, read)
                if new:
                    echo(new.rstrip("\n"))
        if ended is not None:
            return ended
        try:
            status, away = client.get_job_status(job), None
        except DROPPED as error:
            away = time.monotonic() if away is None else away
            if time.monotonic() - away > FOLLOW_DEADLINE_S:
                said = f"the cluster has not answered for {FOLLOW_DEADLINE_S:.0f} s: {str(error).rstrip('.')}"
                raise DeadlineExceeded(said) from None
        else:
            if status.is_terminal() and whole:
                return status
            ended = status if status.is_terminal() else None  # its last lines, by one more stream
        await asyncio.sleep(FOLLOW_POLL_S)
