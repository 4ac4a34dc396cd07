"""The Ray cluster of a run: joining or starting it, placing actors by resources and labels, waiting with deadlines."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import (
    AuthenticationError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from rlep.actors.cluster_address import joined_address, named_address, reachable
from rlep.actors.contact import TOKEN, Contact, write_contact
from rlep.actors.placement import (
    BundleSlot,
    PlacementGroup,
    create_placement_group,
    crowded,
    shortfall,
    unplaceable,
)
from rlep.actors.ray_private import log_raylet_messages, refuses_token, start_private_cluster
from rlep.actors.ray_watch import watch_head
from rlep.actors.timeline import Timeline
from rlep.config.roles import ActorConfig, ClusterConfig
from rlep.core.errors import ActorLost, ConfigError, DeadlineExceeded, HeadLost, PlacementError, RlepError
from rlep.core.files import write_whole
from rlep.core.paths import private_directory, save_logs
from rlep.core.waiting import silence

RAY_FILES = "r"
"""In ``Cluster.home``: Ray's own directory, which it opens to every user; no other user comes that far."""
DEEPEST_SOCKET = len(f"/{RAY_FILES}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Depth of Ray's sockets below ``Cluster.home``; a process has at most seven digits."""

TOKEN_HINT = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with its head's token"

SENT_AGAIN = 5
"""Times that Ray makes a call again whose message was lost while the actor lives; what may not be done twice is ``Once``."""

NEVER_RAN = "The actor never ran"
"""Ray's words for an actor whose place was on a node that is found to be lost: another place may be free."""

GUESSES = " There are some potential root causes."
"""Ray's words before its list of what may have ended a process: killed for memory, ``ray stop``, a crash."""

LOST = (RayActorError, OutOfMemoryError, NodeDiedError, WorkerCrashedError, ObjectLostError)
"""Errors of Ray for an actor that is gone, or whose answer went with its node; ``OutOfMemoryError``: of its memory monitor."""

Report = Callable[[str, str, str], None]
"""(event, actor, error): how losses and restarts of actors are reported."""


def unreported(event: str, actor: str, error: str) -> None:
    """A ``Report`` that keeps nothing."""


class Cluster:
    """A connection to Ray. Actors are named within the namespace of the run."""

    def __init__(self, config: ClusterConfig, run_name: str, report: Report = unreported) -> None:
        self.config = config
        self.report = report
        self.timeline = Timeline()
        self.namespace = f"rlep-{run_name}"
        self._roles: dict[str, ActorConfig] = {}
        """Resources that each named actor asks for, to see that they fit a private cluster together."""
        self._groups: dict[str, PlacementGroup] = {}
        self.headless = False
        """Set once Ray's head process is gone: a call to it would wait for a minute and then end this process."""
        self.home: Path | None = None
        """Private directory of a private cluster, removed with it; None where an existing one was joined."""

    def connect(self) -> None:
        """Join the configured cluster or the one of the surrounding Ray job; otherwise start a private one.

        Raises ``PlacementError`` where none answers or starts.
        """
        # Ray has read it; the processes that it starts keep its handler.
        os.environ.pop("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", None)
        log_raylet_messages()
        if address := joined_address(self.config.address):
            self._join(address, named_address(self.config.address))
            return
        self.home = private_directory("ray", deepest=DEEPEST_SOCKET)
        if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
            # Ray switches token authentication on for local clusters; this keeps its token out of the home directory.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # For other processes of the same user: see contact.py.
        write_whole(self.home / TOKEN, _own_token(), private=True, shared=True)
        start_private_cluster(self.home / RAY_FILES, self.namespace, self.config.cpus, self.config.start_deadline_s)
        write_contact(self.home, self.contact)

    def _join(self, address: str, named: str) -> None:
        reached = reachable(address, named)
        try:
            if refuses_token(address):
                raise PlacementError(f"the Ray cluster at {named} refuses this token: {TOKEN_HINT}")
            ray.init(address=address, namespace=self.namespace, log_to_driver=False, logging_level="error")
        except AuthenticationError as error:
            said = str(error).split(". ")[0]
            raise PlacementError(f"this process has no token for Ray: {said}; {TOKEN_HINT}") from None
        except (ConnectionError, ValueError) as error:
            what = f"{named} answers, but refuses the connection: {TOKEN_HINT}; or it is no Ray cluster"
            raise PlacementError(what if reached else f"no Ray cluster answers at {named}: {error}") from None

    @property
    def contact(self) -> Contact:
        """Address and token by which another process reaches this cluster and the run on it."""
        token = None if self.home is None else str(self.home / TOKEN)
        address = ray.get_runtime_context().gcs_address
        return Contact(self.namespace.removeprefix("rlep-"), address, platform.node(), token)

    async def watch(self) -> None:
        """Wait until Ray's head process is gone. Raises ``HeadLost``."""
        try:
            await watch_head(ray.get_runtime_context().gcs_address, self.config.head_deadline_s)
        except HeadLost as error:
            self.headless = True
            self.report("head_lost", "head", str(error))  # at once: where the end takes longer, Ray ends this process
            raise

    def close(self, logs: Path | None = None) -> None:
        """Disconnect; end a private cluster with all its processes and files, after saving its logs to ``logs``."""
        if ray.is_initialized():
            ray.shutdown()
        if self.home is not None:
            if logs is not None:
                self._save_logs(self.home / RAY_FILES, logs)
            shutil.rmtree(self.home, ignore_errors=True)
            self.home = None

    def _save_logs(self, home: Path, logs: Path) -> None:
        for session in home.glob("session_2*"):
            try:  # neither a full disk nor a prepared directory may hide what ended the run
                save_logs(session / "logs", logs)
            except (OSError, ConfigError) as error:
                with suppress(OSError):
                    self.report("logs_lost", "head", str(error))

    def reserve(self, name: str, bundles: Sequence[ActorConfig]) -> PlacementGroup:
        """Resources for several actors, all or none, reserved until ``forget`` while the actors come and go.

        The same name is the same group. Raises ``PlacementError`` at once where a private cluster cannot hold it;
        on other clusters an actor that is placed in it waits for it.
        """
        if name not in self._groups:
            group = PlacementGroup(name, tuple(bundles))
            if self.home is not None:
                self._claim(name, group.together, group.bundles)
            try:
                create_placement_group(group, f"{self.namespace}.{name}")
            except RaySystemError as error:
                if "already exists" not in str(error):
                    raise
                raise PlacementError(self._taken()) from None
            self._groups[name] = group
        return self._groups[name]

    async def place(
        self, actor: ActorClass[Any], name: str, role: ActorConfig, *args: object, slot: BundleSlot | None = None
    ) -> ActorHandle[Any]:
        """Create the named actor and wait until it has a process; with ``slot`` in that placement group.

        Raises ``PlacementError`` with the missing resource or label when it is not placed in time, or when an actor of
        that name is alive (the run's name is taken).
        """
        if self.headless:
            raise PlacementError(f"actor {name} cannot be placed: Ray's head process is gone")
        if self.home is not None and slot is None:
            self._claim(name, role, (role,))
        options: dict[str, Any] = {"num_cpus": role.cpus, "num_gpus": role.gpus}
        options |= {"max_restarts": 0, "max_task_retries": SENT_AGAIN}
        if slot is not None:
            options["scheduling_strategy"] = slot.strategy
        elif role.label_selector:
            options["label_selector"] = dict(role.label_selector)
        until = time.monotonic() + self.config.place_deadline_s
        while True:
            handle = self._create(actor, name, options, args)
            try:
                await call(handle.ping.remote(), f"placing {name}", max(0.0, until - time.monotonic()))
            except DeadlineExceeded:
                ray.kill(handle)
                lacking = shortfall(role, (role,)) if slot is None else slot.group.shortfall()
                raise PlacementError(
                    f"actor {name} was not placed within {self.config.place_deadline_s:.0f} s: {lacking}"
                ) from None
            except BaseException as error:
                if ray.is_initialized():  # otherwise it ended with the cluster, and Ray would start another
                    ray.kill(handle)
                if not isinstance(error, ActorLost) or NEVER_RAN not in str(error):
                    raise
            else:
                return handle

    def _create(
        self, actor: ActorClass[Any], name: str, options: dict[str, Any], args: tuple[object, ...]
    ) -> ActorHandle[Any]:
        try:
            handle: ActorHandle[Any] = actor.options(name=name, namespace=self.namespace, **options).remote(*args)
        except ValueError as error:
            if "already taken" not in str(error):
                raise
            raise PlacementError(self._taken()) from None
        return handle

    def _taken(self) -> str:
        run = self.namespace.removeprefix("rlep-")
        return f"a run named {run} is in progress on this cluster: choose another run.name"

    def waits_for(self, role: ActorConfig) -> str:
        """Say what an actor of this role waits for, and for how long."""
        if self.headless:
            return "waits for Ray's head process, which is gone"
        return (
            f"{shortfall(role, (role,))}; waits {self.config.place_deadline_s:g} s at most (cluster.place_deadline_s)"
        )

    def _claim(self, name: str, together: ActorConfig, bundles: Sequence[ActorConfig]) -> None:
        """Count these in on a private cluster, which does not grow. Raises ``PlacementError`` where they do not fit."""
        self._roles[name] = together
        if reason := unplaceable(bundles) or crowded(self._roles):
            self.forget(name)
            hint = "ask for less (cpus and gpus of its section), or give the cluster more (cluster.cpus, larger nodes)"
            raise PlacementError(f"actor {name} cannot be placed: {reason}; {hint}")

    def forget(self, name: str) -> None:
        """Free what an actor that will not be started again, or an empty placement group, had reserved."""
        self._roles.pop(name, None)
        group = self._groups.pop(name, None)
        if group is not None and not self.headless:
            group.release()


def _own_token() -> str:
    """The token that this process shows to the private cluster it starts. Raises ``PlacementError``."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = os.environ["RAY_AUTH_TOKEN_PATH"]
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"RAY_AUTH_TOKEN_PATH = {path} cannot be read: {error}") from None


async def call(reference: Any, what: str, deadline_s: float) -> Any:
    """Await an actor's answer. Raises ``DeadlineExceeded``, ``ActorLost``, or what the actor's method raised."""
    waiting = silence(asyncio.ensure_future(_await(reference)))  # nobody may be left to await it
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.shield(waiting)
    except RayTaskError as error:  # first: it is also an instance of its cause's class, which may be a TimeoutError
        if isinstance(error.cause, RlepError):
            raise error.cause from None
        raise
    except (TimeoutError, GetTimeoutError):
        raise DeadlineExceeded(f"{what} did not answer within {deadline_s:.0f} s") from None
    except LOST as error:
        raise ActorLost(f"{what}: {_reason(error)}") from None


async def _await(reference: Any) -> Any:
    return await reference


def _reason(error: BaseException) -> str:
    """Return the last line of Ray's message that says something: its own causes come first, as a traceback.

    Of the memory monitor's message it is the first: advice comes last. Ray's guesses at a cause are left out.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error, OutOfMemoryError):
        lines.reverse()
    said = next((line for line in reversed(lines) if line.strip("^~ ")), type(error).__name__)
    return said.partition(GUESSES)[0]
