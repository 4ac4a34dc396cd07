"""What the processes of a run hold, every few steps a JSON line: ``census.py HOME DRIVER_PID``, until the driver has ended.

The processes are all that carry the environment variable ``RLEP_SOAK`` with this process's value, orphans included, but for
those that began before the driver and for commands beside it. The run's directory is ``HOME/run``, its pool ``HOME/pool``,
what its driver says of itself ``HOME/inside.jsonl``, and the lines go to ``HOME/census.jsonl``. The last one, half a minute
after the driver at most, has only ``left``: what of the run is still there, processes (ended then) and names in /dev/shm.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import redis

from rlep.services.pool.embedded.redis_process import EmbeddedRedis

if TYPE_CHECKING:
    from benchmarks.parts.marked import marked
else:
    from marked import marked

EVERY = 3
"""Steps between two lines."""
END_S = 30.0
MIB = 2**20
MARK = "RLEP_SOAK"
SHARED = Path("/dev/shm")
KINDS = {  # what a process is, by a part of its command line; the first that fits
    "ray::GeneratorActor": "generator",
    "VLLM::": "engine",
    "ray::VerifierActor": "verifier",
    "ray::EnvironmentActor": "environment",
    "ray::LearnerActor": "learner",
    "ray::PoolActor": "pool",
    "ray::ControlActor": "control",
    "ray::": "worker",
    "rlep.services.verifier.worker": "grader",
    "log_monitor.py": "log monitor",
    "multiprocessing.spawn": "starting",
}
PROGRAMS = {"raylet": "raylet", "gcs_server": "gcs", "redis-server": "redis", "valkey-server": "redis"}


def main(home: Path, driver: int) -> None:
    """Write lines until the driver has ended, then what it left."""
    step, named = 0, set[str]()
    lines = home / "census.jsonl"
    while psutil.pid_exists(driver) and psutil.Process(driver).status() != psutil.STATUS_ZOMBIE:
        metrics = home / "run" / "metrics.jsonl"
        now = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if now and (not step or now >= step + EVERY):
            with contextlib.suppress(redis.ConnectionError, FileNotFoundError):  # the run is ending
                step, line = now, census(home, driver, named)
                append(lines, {"step": now, **line})
        time.sleep(0.2)
    until = time.monotonic() + END_S
    while (left := [process for process in marked(MARK) if kind_of(process, driver)]) and time.monotonic() < until:
        time.sleep(0.2)
    found = [f"{process.pid} {' '.join(process.cmdline())[:80]}" for process in left]
    for process in left:
        process.kill()
    append(lines, {"left": found + sorted(str(SHARED / name) for name in named if (SHARED / name).exists())})


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def census(home: Path, driver: int, named: set[str]) -> dict[str, Any]:
    """All series, and ``pids`` by kind; ``named``: entries of /dev/shm that the run was ever seen to have."""
    found: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in marked(MARK):
        found[kind_of(process, driver)].append(process)
    found.pop("", None)
    values: dict[str, Any] = {"pids": {kind: [process.pid for process in some] for kind, some in found.items()}}
    values["processes"] = sum(map(len, found.values()))
    store: dict[int, int] = {}
    for kind, processes in found.items():
        values[f"{kind}.count"] = len(processes)
        if numbers := [held for process in processes if (held := held_by(process)) is not None]:
            memory, descriptors, threads = zip(*numbers, strict=True)
            values |= {f"{kind}.memory": max(memory), f"{kind}.memory_sum": sum(memory)}
            values |= {f"{kind}.fds": max(descriptors), f"{kind}.threads": max(threads)}
        for process in processes:
            named |= shared_names(process)
            store |= unnamed_shared(process)
    there = [SHARED / name for name in named if (SHARED / name).exists()]
    files = [file for path in there for file in (path, *path.rglob("*"))]
    values |= {"shm.entries": len(there), "shm.mib": (sum(store.values()) + sum(map(bytes_of, files))) / MIB}
    private = Path(json.loads((home / "run" / "contact.json").read_text())["token_file"]).parent
    values["private.samplers"] = len(list(private.glob("sampler-*")))
    values["private.files"] = sum("logs" not in path.parts for path in private.rglob("*"))
    values["run.files"] = sum(path.is_file() for path in (home / "run").rglob("*"))
    return values | redis_holds(home / "pool") | inside(home / "inside.jsonl")


def redis_holds(pool: Path) -> dict[str, float]:
    """Keys and memory of the pool's server."""
    server = EmbeddedRedis(pool)
    with redis.Redis.from_url(server.url, password=server.password_file.read_text().strip(), protocol=2) as client:
        return {"redis.keys": client.dbsize(), "redis.used": client.info("memory")["used_memory"] / MIB}


def inside(lines: Path) -> dict[str, float]:
    """What the driver last said of itself."""
    last = lines.read_text().splitlines()[-1:] if lines.exists() else []
    return {f"driver.{name}": value for line in last for name, value in json.loads(line).items()}


def kind_of(process: psutil.Process, driver: int) -> str:
    """What a process of the run is; empty for whatever stands beside it."""
    if process.pid == driver:
        return "driver"
    try:
        command = process.cmdline() or [""]
        beside = process.pid == os.getppid() or process.ppid() == os.getppid()
    except psutil.Error:
        return ""
    if beside:
        return ""
    kind = next((kind for part, kind in KINDS.items() if part in " ".join(command)), None)
    return kind or PROGRAMS.get(Path(command[0].split(" ")[0]).name, "other")


def held_by(process: psutil.Process) -> tuple[float, int, int] | None:
    """(MiB of memory, file descriptors, threads); None for a process that has just ended."""
    try:
        memory = process.memory_info()
        return (memory.rss - memory.shared) / MIB, process.num_fds(), process.num_threads()
    except psutil.Error:
        return None


def shared_names(process: psutil.Process) -> set[str]:
    """Entries of /dev/shm that a process has mapped."""
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return set()
    found = re.findall(r" /dev/shm/([^\n]+)$", maps, re.M)
    return {name.split("/")[0] for name in found if not name.endswith("(deleted)")}


def unnamed_shared(process: psutil.Process) -> dict[int, int]:
    """Inode → bytes of files in /dev/shm that a process has open and that have no name any more: Ray's store."""
    found = {}
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith(f"{SHARED}/") and target.endswith(" (deleted)"):
                    found[descriptor.stat().st_ino] = bytes_of(descriptor)
    return found


def bytes_of(path: Path) -> int:
    """What a file takes; 0 where it has just gone."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


main(Path(sys.argv[1]), int(sys.argv[2]))
