"""Changes of a run that is at work: ``rlep scale`` and ``rlep drain`` as child processes. Only ``--actions`` makes them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlep.console.gate import Session
from rlep.console.run_files import RunPlace
from rlep.core.errors import ConfigError
from rlep.services.pool.rpc.access import Role

ACTION_S = 960.0
"""Deadline of a command, which gives up by itself before that."""
KILLED_S = 5.0
"""Longest wait for the end of a command that was killed."""
MOST_OUTPUT = 2**14
"""Bytes of a command's output that are kept: its end."""
MOST_KEPT = 5
"""Commands of a run that its page shows."""
MOST_ACTORS = 9999
ROLES = ("generators", "verifiers")
_CONTACT = "contact.json"
_ACTOR = re.compile(r"(generator|verifier)-[0-9]{1,6}")


@dataclass(slots=True)
class Change:
    """A command that was started."""

    words: tuple[str, ...]
    """After ``rlep``."""
    begun: float
    """Seconds since the epoch."""
    output: bytes = b""
    ended: str = ""
    """How; empty while it works."""

    @property
    def command(self) -> str:
        """As one would type it."""
        return shlex.join(("rlep", *self.words))

    @property
    def text(self) -> str:
        """Its output, standard error among it."""
        return self.output.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Offer:
    """What the page of a run's actors offers to the holder of a session."""

    csrf: str
    refused: str
    """Why nothing can be changed; empty where it can."""
    changes: Sequence[Change]


@dataclass(eq=False)
class Actions:
    """Commands on runs; of each run one at a time."""

    program: Sequence[str] = (sys.executable, "-m", "rlep")
    deadline_s: float = ACTION_S
    _changes: dict[Path, list[Change]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def offer(self, place: RunPlace, session: Session | None) -> Offer:
        """For a page: the commands so far, and whether another may be started."""
        refused = "" if session is not None and session.role >= Role.ADMIN else "This token may only read."
        return Offer(session.csrf if session else "", refused or _closed(place), self._of(place)[::-1])

    def mark(self, place: RunPlace) -> str:
        """Changes when a command begins or ends."""
        return f"{len(self._of(place))} {[(one.begun, one.ended) for one in self._of(place)]}"

    def scale(self, place: RunPlace, form: Mapping[str, str]) -> None:
        """Start ``rlep scale``: ``role`` and ``count`` of the form. Raises ``ConfigError`` with one sentence."""
        role, count = form.get("role", ""), form.get("count", "").strip()
        if role not in ROLES:
            raise ConfigError("The role is generators or verifiers.")
        if not re.fullmatch("[0-9]{1,9}", count, re.ASCII) or not 1 <= int(count) <= MOST_ACTORS:
            raise ConfigError(f"The number is a whole number from 1 to {MOST_ACTORS}.")
        self._start(place, ("scale", role, str(int(count))))

    def drain(self, place: RunPlace, form: Mapping[str, str]) -> None:
        """Start ``rlep drain`` of ``actor``. Raises ``ConfigError`` with one sentence."""
        actor = form.get("actor", "")
        if not _ACTOR.fullmatch(actor):
            raise ConfigError("An actor is named as on the page, e.g. generator-1.")
        self._start(place, ("drain", actor))

    def _of(self, place: RunPlace) -> list[Change]:
        return self._changes.get(place.directory, [])

    def _start(self, place: RunPlace, words: tuple[str, ...]) -> None:
        if reason := _closed(place):
            raise ConfigError(reason)
        if any(not one.ended for one in self._of(place)):
            raise ConfigError("Another command on this run has not ended yet.")
        change = Change((*words, "--run", str(place.directory.absolute())), time.time())
        self._changes[place.directory] = [*self._of(place), change][-MOST_KEPT:]
        task = asyncio.get_running_loop().create_task(self._run(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, change: Change) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.program,
                *change.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            change.ended = f"did not start: {error}"
            return
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.deadline_s):
                while part := await process.stdout.read(4096):
                    change.output = (change.output + part)[-MOST_OUTPUT:]
                code = await process.wait()
                change.ended = "done" if code == 0 else f"failed with exit status {code}"
        except TimeoutError:
            change.ended = f"stopped after {self.deadline_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):  # what it has left to say is dropped; so its pipe is closed
                async with asyncio.timeout(KILLED_S):
                    await process.communicate()
            change.ended = change.ended or "stopped with the console"


def _closed(place: RunPlace) -> str:
    """Why a run takes no commands from here.

    ``rlep scale`` connects to the address that ``contact.json`` names: only a file of this user says where.
    """
    try:
        held = (place.directory / _CONTACT).lstat()
    except OSError:
        return "The run takes no commands now: its actors are starting, or it has ended."
    if not stat.S_ISREG(held.st_mode) or held.st_uid != os.geteuid() or held.st_mode & 0o022:
        return f"{_CONTACT} of this run is not a file that only you can change."
    return ""
