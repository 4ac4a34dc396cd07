"""Every test gets its folder's marker and time limit; suites that start processes must leave none behind."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

KINDS = ("unit", "contract", "services", "browser", "cluster", "engines", "e2e", "real")
TIMEOUTS = {
    "browser": 600,
    "cluster": 600,
    "engines": 600,
    "e2e": 900,
    "real": 1800,
}  # seconds for one test, fixtures included; others: pyproject.toml
STARTING_PROCESSES = ("services", "browser", "cluster", "engines", "e2e", "real")
EXIT_GRACE = 30.0  # seconds that processes get to end after the last fixture of a file was torn down

SIGHTING_S = 1.0
"""Between two looks for new processes: one that leaves something in shared memory has imported torch, which takes longer."""

SHARED_MEMORY = Path("/dev/shm")
OWNER = "RLEP_TEST_OWNER"
# Inherited by every process that this test process starts, daemons included: that is how leftovers are told from the
# processes of the other xdist worker and of everybody else on the machine.
os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # a name that is no directory asks nobody, but in tests of a hub of their own
os.environ.setdefault(
    "TORCHINDUCTOR_COMPILE_THREADS", "1"
)  # on GPUs torch compiles in processes of its own, which stay for the next compilation
os.environ[OWNER] = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"

# No test depends on speed, nor on what was drawn in another run of it.
settings.register_profile("rlep", deadline=None, derandomize=True)
settings.load_profile("rlep")


def kind_of(path: Path) -> str | None:
    """The folder below ``tests/`` that a test file lies in."""
    parts = path.relative_to(Path(__file__).parent).parts
    return parts[0] if parts[0] in KINDS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder, with that folder's time limit unless the test has its own."""
    for item in items:
        kind = kind_of(item.path)
        if kind is None:
            raise pytest.UsageError(f"{item.path} is in none of the folders tests/{{{','.join(KINDS)}}}")
        item.add_marker(kind)
        if kind in TIMEOUTS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUTS[kind]))


def own_processes() -> list[psutil.Process]:
    """Living processes that this test process has started, directly or not, reparented or not."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and is_own(process)]


def is_own(process: psutil.Process) -> bool:
    """Whether a process carries this test process's mark and is more than multiprocessing's own housekeeping."""
    try:
        if not is_marked(process) or process.status() == psutil.STATUS_ZOMBIE:
            return False
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
    return "multiprocessing.resource_tracker" not in command and "multiprocessing.forkserver" not in command


def is_marked(process: psutil.Process) -> bool:
    """Whether a process carries this test process's mark."""
    environment = process.environ()
    if not environment and (parent := process.parent()) is not None:
        return is_marked(parent)  # Redis writes its title over its environment
    return environment.get(OWNER) == os.environ[OWNER]


def describe(process: psutil.Process) -> str:
    """Pid and command line of a process that may just have ended."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.NoSuchProcess:
        return f"{process.pid} (ended)"


class Sightings(threading.Thread):
    """Remembers every process that this test process has started: what a dead one left can be told from others' only so."""

    def __init__(self) -> None:
        super().__init__(name="sightings", daemon=True)
        self.own = {os.getpid()}
        self._known: set[int] = set()

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(SIGHTING_S)

    def look(self) -> None:
        """Note the processes begun since the last look."""
        now = set(psutil.pids())
        for pid in now - self._known:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if is_marked(psutil.Process(pid)):
                    self.own.add(pid)
                else:
                    self.own.discard(pid)  # the number of an ended one of ours, given to somebody else
        self._known = now


def shared_segments() -> set[str]:
    """What this test process and those that it started have in shared memory (names hold the pid)."""
    sightings.look()
    return {path.name for path in SHARED_MEMORY.glob("rlep*") if sightings.own & pids_in(path.name)}


def pids_in(name: str) -> set[int]:
    """Numbers in a name, one of which is its owner's pid."""
    return {int(part) for part in name.split("-") if part.isdigit()} - {os.getuid()}


sightings = Sightings()
sightings.start()


@pytest.fixture(scope="module", autouse=True)
def leaves_no_process_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a file whose tests and fixtures leave processes running; end them, so that the next file starts clean."""
    if kind_of(request.path) not in STARTING_PROCESSES:
        yield
        return
    before = {process.pid for process in own_processes()}
    segments = shared_segments()
    yield
    deadline = time.monotonic() + EXIT_GRACE
    while (left := [p for p in own_processes() if p.pid not in before]) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        names = "\n  ".join(describe(process) for process in left)
        for process in left:
            process.kill()
        pytest.fail(f"left running after {request.path.name} (now ended):\n  {names}", pytrace=False)
    if kind_of(request.path) not in ("services", "browser") and (files := shared_segments() - segments):
        pytest.fail(f"{request.path.name} left in /dev/shm: {', '.join(sorted(files))}", pytrace=False)
