"""Parts of Ray beyond its public interface; a contract test names the symbol that moved."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import psutil
import ray
from ray._private import parameter, ray_constants, services, worker
from ray._private.grpc_utils import init_grpc_channel
from ray._private.services import canonicalize_bootstrap_address
from ray._private.utils import get_num_cpus

from rlep.core.errors import PlacementError

_log = logging.getLogger(__name__)
OBJECT_STORE_BYTES = 512 * 2**20
"""Shared memory of a private cluster: a step of the largest run that fits one machine needs a tenth of it."""

LOOK_AGAIN_S = 0.2
"""Time between two looks for the node of a private cluster that is starting."""
CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call of the head process that changes nothing; an empty request is whole."""
CHECK_S = 10.0


def refuses_token(address: str) -> bool:
    """Return True when the head at ``address``, or this machine's for ``auto``, refuses the token of this process.

    ``ray.init`` would try for 48 s, and print every attempt. Raises ``AuthenticationError`` where the token cannot be read.
    """
    head = canonicalize_bootstrap_address(address) if address == "auto" else address
    if head is None:
        return False
    with init_grpc_channel(head) as channel:
        try:
            channel.unary_unary(CHECK_ALIVE)(b"", timeout=CHECK_S)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def log_raylet_messages() -> None:
    """Have Ray log (INFO) what it tells a driver of lost workers and repeated calls, where it would print it on standard output.

    rlep reports each loss itself, and a step's JSON is on standard output.
    """
    worker.print_to_stdstream = _log_lines


def _log_lines(data: Mapping[str, Sequence[str]], ignore_prefix: bool) -> None:
    for line in data["lines"]:
        _log.info("raylet: %s", line)


def start_private_cluster(home: Path, namespace: str, cpus: int | None, deadline_s: float) -> None:
    """Start Ray on this machine with all its files in ``home``, listening on loopback alone.

    Ray opens ``home`` itself to every user, so it is to lie within a private directory. Its processes do not get the
    SIGHUP of a terminal that is closed: this process does, and ends them.

    A node process that ends as it starts (Ray's own waits of 15 s are fixed) is started again. Raises ``PlacementError``
    where none comes up within ``deadline_s`` seconds.
    """
    # The control service would keep a record of every call (4 KB, up to 100,000), which no dashboard shows here.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # The control service is a process of its own, for which Ray waits as long as this says.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(max(1, round(deadline_s))))
    until = time.monotonic() + deadline_s
    while True:
        try:
            with on_loopback(), on_free_ports(), unhurt_by_hangups(), waiting_for_node(home, until):
                ray.init(
                    address="local",
                    namespace=namespace,
                    num_cpus=cpus,
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="error",
                    _temp_dir=str(home),
                )
        except Exception as error:
            if type(error) is not Exception:  # Ray raises a bare one for its node, and leaves its processes
                raise
            _end_processes(home)
            if time.monotonic() >= until:
                raise PlacementError(
                    f"Ray's node did not start on this machine within {deadline_s:g} s: if other processes keep the machine "
                    f"busy, wait for their end, or raise cluster.start_deadline_s ({error})"
                ) from None
        else:
            return


def _processes(home: Path) -> Iterator[psutil.Process]:
    """Yield what this process has started of the Ray whose files are in ``home``, and still runs."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if str(home) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _end_processes(home: Path) -> None:
    for process in _processes(home):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def waiting_for_node(home: Path, until: float) -> Iterator[None]:
    """Within the block Ray waits for the node that it starts until this time, while the node's process runs.

    Ray itself gives up after 30 s, which nothing raises, and waits as long for a process that has ended.
    """
    before = services.get_node

    def get_node(gcs_address: str, node_id: str) -> object:
        while True:
            try:
                return before(gcs_address, node_id)
            except RuntimeError:  # not registered yet
                if time.monotonic() >= until or not any(process.name() == "raylet" for process in _processes(home)):
                    raise Exception("its node process (raylet) ended, or has not registered") from None
                time.sleep(LOOK_AGAIN_S)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = before


@contextmanager
def on_loopback() -> Iterator[None]:
    """Within the block Ray leaves 127.0.0.1 as it is, as it does on macOS; on Linux it would put the machine's address there.

    So a cluster that is started has the node address 127.0.0.1, and by that every one of its processes listens there only.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def on_free_ports() -> Iterator[None]:
    """Within the block the dashboard agent of a cluster that is started takes a free port.

    Its default, 52365, is that of every ``ray start``: a head started by hand on the same machine would have no agent,
    and no agent is no job.
    """
    before = parameter.RayParams
    parameter.RayParams = partial(before, dashboard_agent_listen_port=0)
    try:
        yield
    finally:
        parameter.RayParams = before


@contextmanager
def unhurt_by_hangups() -> Iterator[None]:
    """Within the block this thread starts processes with SIGHUP blocked, as Ray itself does with SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores() -> int:
    """The CPUs that a private cluster has: the machine's, or those that its container may use."""
    return int(get_num_cpus(override_docker_cpu_warning=True))
