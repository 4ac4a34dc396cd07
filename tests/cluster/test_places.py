"""Leftovers of killed owners go, those of living ones stay, and an owner that is told to end closes what it has."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import psutil
import pytest
import ray

from rlep.actors.cluster import DEEPEST_SOCKET, RAY_FILES
from rlep.actors.ray_private import start_private_cluster, waiting_for_node
from rlep.core import paths
from rlep.core.errors import PlacementError
from rlep.core.paths import private_directory, save_logs
from rlep.engines.sampler import runtime
from rlep.engines.sampler.runtime import list_shared_memory, make_runtime
from tests.waiting import wait_until


def test_a_new_directory_is_private_and_only_dead_owners_leftovers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    dead = tmp_path / f"rlep-test-{os.getuid()}-{ended.pid}-x"
    other_kind = tmp_path / f"rlep-other-{os.getuid()}-{ended.pid}-x"
    living = tmp_path / f"rlep-test-{os.getuid()}-{os.getppid()}-x"
    for directory in (dead, other_kind, living):
        directory.mkdir()
        (directory / "file").write_text("")
    made = private_directory("test")
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    assert not dead.exists()
    assert living.exists()
    assert other_kind.exists()
    assert made.name.startswith(f"rlep-test-{os.getuid()}-{os.getpid()}-")


@pytest.mark.parametrize("prepared", ["mode", "owner", "link"])
def test_a_leftover_that_another_user_may_have_prepared_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    """It names the shared memory of this user's that is to be removed, e.g. of a learner that lives."""
    if prepared == "owner" and os.geteuid():
        pytest.skip("only root gives files away")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path)
    (tmp_path / "victim").write_text("weights")
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    directory = tmp_path / f"rlep-sampler-{os.getuid()}-{ended.pid}-x"
    filled = tmp_path / "elsewhere" if prepared == "link" else directory
    filled.mkdir()
    (filled / "shared-memory").write_text("victim")
    if prepared == "link":
        directory.symlink_to(filled)
    elif prepared == "mode":
        directory.chmod(0o777)
    else:
        os.chown(directory, 12345, -1)
    made = make_runtime(None)
    assert (tmp_path / "victim").read_text() == "weights"
    assert (filled / "shared-memory").exists()
    assert made.stat().st_mode & 0o777 == 0o700


def test_what_another_pid_namespace_holds_in_shared_memory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers with one /dev/shm may have pids of their own: there the owner's means nobody."""
    monkeypatch.setattr(paths, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(paths, "_is_alive", lambda _: False)
    held = private_directory("weights", in_memory=True)
    left = tmp_path / held.name.replace(held.name[-8:], "12345678")
    left.mkdir()  # its owner is dead: nobody holds it
    private_directory("weights", in_memory=True)
    assert held.exists()
    assert not left.exists()


def test_sockets_have_room_with_the_longest_ids_and_a_long_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(os, "getuid", lambda: 2**32 - 2)
    monkeypatch.setattr(os, "getpid", lambda: 2**22)
    made = private_directory("ray", deepest=DEEPEST_SOCKET)
    try:
        plasma = made / RAY_FILES / "session_2026-11-21_21-50-09_663860_4194304" / "sockets" / "plasma_store"
        request = make_runtime(made) / "0e37c1a5-5c0b-4d4c-9e5a-4f2f2a5d8f10"
        assert max(len(str(plasma)), len(str(request))) <= 107
    finally:
        shutil.rmtree(made)
    alone = make_runtime(None)
    alone.rmdir()
    assert len(str(alone / request.name)) <= 107
    kept = private_directory("test")
    assert kept.parent == deep


def test_what_living_workers_share_is_listed_though_another_process_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    found = [psutil.Process(), SimpleNamespace(pid=ended.pid)]
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: found[::-1])
    shared = SharedMemory(create=True, size=64)
    try:
        list_shared_memory(tmp_path)
        assert shared.name in (tmp_path / "shared-memory").read_text().split()
    finally:
        shared.close()
        shared.unlink()


SLOW_TO_CLOSE = """
import asyncio, os, signal
from rlep.actors.cluster import Cluster
from rlep.cli.shell import command_errors, say_stopping
from rlep.config.roles import ClusterConfig
from rlep.launch.event_loop import run_async

async def connected():
    cluster = Cluster(ClusterConfig(cpus=1), "terminated")
    await asyncio.to_thread(cluster.connect)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(4)  # longer than Ray's three seconds: the claim itself
        await asyncio.to_thread(cluster.close)
        print("closed")

command_errors(lambda: run_async(connected(), say_stopping))()
"""


def test_a_command_that_gets_sigterm_has_more_than_rays_three_seconds_to_close() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW_TO_CLOSE], capture_output=True, text=True, check=False)
    assert done.stdout == "closed\n", (done.returncode, done.stderr)
    assert [line for line in done.stderr.splitlines() if line in ("stopping …", "interrupted")] == ["stopping …"]
    assert "SIGTERM received" not in done.stderr  # Ray's stack trace


HUNG_UP = """
import asyncio, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup have inherited that it is ignored
from pathlib import Path
import ray
import typer
from rlep.actors.cluster import Cluster
from rlep.cli.shell import command_errors, say_stopping
from rlep.config.roles import ActorConfig, ClusterConfig
from rlep.launch.event_loop import run_async

@ray.remote
class Answering:
    def ping(self):
        return "the actor answers"

async def connected():
    cluster = Cluster(ClusterConfig(cpus=1), "hung-up")
    await asyncio.to_thread(cluster.connect)
    try:
        actor = await cluster.place(Answering, "answering", ActorConfig(cpus=0.5))
        Path(sys.argv[1], "started").touch()
        await asyncio.Event().wait()
    finally:
        print("a line for the terminal that is closed", flush=True)
        Path(sys.argv[1], "said").write_text(await actor.ping.remote())
        await asyncio.to_thread(cluster.close)

try:
    command_errors(lambda: run_async(connected(), say_stopping))()
except typer.Exit as ended:
    sys.exit(ended.exit_code)
"""


def test_a_command_whose_terminal_is_closed_still_has_its_actors_and_ends_in_order(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", HUNG_UP, str(tmp_path)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as driver:
        os.close(theirs)
        wait_until(lambda: (tmp_path / "started").exists() or driver.poll() is not None, "the actor")
        assert driver.poll() is None, os.read(ours, 65536).decode()
        os.close(ours)
        os.killpg(driver.pid, signal.SIGHUP)  # as the shell and the kernel send it: to every process of the command
        try:
            assert driver.wait(timeout=120) == 130
        finally:
            driver.kill()
    assert (tmp_path / "said").read_text() == "the actor answers"


PRIVATE = """
import json
import psutil
from rlep.actors.cluster import Cluster
from rlep.config.roles import ClusterConfig

cluster = Cluster(ClusterConfig(cpus=1), "private")
cluster.connect()
processes = psutil.Process().children(recursive=True)
listening = [one.laddr.port for process in processes for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
modes = [oct(path.stat().st_mode & 0o777) for path in (cluster.home, cluster.home / "token")]
cluster.close()
print(json.dumps({"ports": listening, "modes": modes}))
"""


def test_a_private_cluster_is_open_to_its_owner_only_and_leaves_rays_default_ports_free() -> None:
    done = subprocess.run([sys.executable, "-c", PRIVATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["modes"] == ["0o700", "0o600"]
    assert len(found["ports"]) > 3  # the head's, the node's, the agent's, and their metrics
    assert {*found["ports"]}.isdisjoint({6379, 8265, 10001, 52365})  # those of `ray start --head`


DYING = """
import asyncio, os
import ray
from rlep.actors.cluster import Cluster, call
from rlep.config.roles import ActorConfig, ClusterConfig
from rlep.core.errors import ActorLost

@ray.remote
class Dying:
    def ping(self):
        return 1

    def die(self):
        os._exit(1)

async def main():
    cluster = Cluster(ClusterConfig(cpus=1), "dying")
    await asyncio.to_thread(cluster.connect)
    try:
        actor = await cluster.place(Dying, "dying", ActorConfig(cpus=0.5))
        await call(actor.die.remote(), "die", 120)
    except ActorLost as error:
        print(error)
    finally:
        await asyncio.to_thread(cluster.close)

asyncio.run(main())
"""


def test_a_lost_actor_is_one_line_and_ray_prints_nothing_above_it() -> None:
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, check=False)
    (line,) = done.stdout.splitlines()
    assert line.startswith("die: ")
    assert "worker process has died" in line
    assert "root causes" not in line
    assert done.stderr == ""


def test_a_node_of_ray_that_does_not_start_is_a_placement_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Exception] = [RuntimeError("other"), Exception("The current node timed out during startup.")]

    def fail(**_: object) -> None:
        raise raised.pop()

    monkeypatch.setattr(ray, "init", fail)
    text = (
        r"^Ray's node did not start on this machine within 0 s.*cluster\.start_deadline_s \(The current node timed out"
    )
    with pytest.raises(PlacementError, match=text):
        start_private_cluster(tmp_path, "rlep-unstarted", 1, deadline_s=0)
    with pytest.raises(RuntimeError, match=r"^other$"):
        start_private_cluster(tmp_path, "rlep-unstarted", 1, deadline_s=60)


def test_a_node_that_registers_late_is_waited_for_while_its_process_runs_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [RuntimeError("GCS cannot find the node")] * 3

    def get_node(address: str, node: str) -> str:
        if late:
            raise late.pop()
        return f"{node} at {address}"

    monkeypatch.setattr(ray._private.services, "get_node", get_node)
    program = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "3600"]) as process, waiting_for_node(tmp_path, time.monotonic() + 600):
        assert ray._private.services.get_node("127.0.0.1:1", "node") == "node at 127.0.0.1:1"
        process.kill()
        process.wait()
        late.append(RuntimeError("GCS cannot find the node"))
        with pytest.raises(Exception, match=r"its node process \(raylet\) ended"):
            ray._private.services.get_node("127.0.0.1:1", "node")
    assert ray._private.services.get_node is get_node


def test_a_second_attempt_finds_no_process_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []
    code = [sys.executable, "-c", "import time; time.sleep(3600)"]

    def started(**_: object) -> None:
        if left:
            return
        left.extend(subprocess.Popen([*code, where]) for where in (str(tmp_path / "session"), "elsewhere"))
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", started)
    start_private_cluster(tmp_path, "rlep-second", 1, deadline_s=600)
    assert left[0].wait(timeout=60) == -signal.SIGKILL
    assert left[1].poll() is None
    left[1].kill()
    left[1].wait()


def test_logs_that_do_not_fit_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("ended")
    (logs / "gcs.out").write_text("ended")
    copy = shutil.copyfileobj

    def fits(source: BinaryIO, target: BinaryIO) -> None:
        if os.fstat(source.fileno()).st_ino == (logs / "raylet.out").stat().st_ino:
            raise OSError(errno.ENOSPC, "No space left on device", "raylet.out")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", fits)
    with pytest.raises(OSError, match="No space left on device"):
        save_logs(logs, tmp_path / "kept")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["gcs.out"]
