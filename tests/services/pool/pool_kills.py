"""Pool servers and writers that kill themselves, or kill or stop their Redis, at a named point of an insert.

Each is a process of its own, forked from one that has imported everything. A point is reached in whichever thread gets
there; ``SIGKILL`` ends the process there and then, with its other threads wherever they are.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import redis

from rlep.cli import main
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc import wire
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.rpc.service import PoolServicer
from rlep.services.pool.storage import connection
from rlep.services.pool.storage.connection import RetryingRedis, connect, until_deadline
from rlep.services.pool.storage.store import Store
from tests.services.pool import pool_writer
from tests.services.pool.pool_history import History

DEADLINE = 60.0
SERVER_POINTS = (
    "arrived",  # the handler has the call, and has read none of its frames
    "read",  # all records are checked, no script is sent
    "within the script",  # Redis has half of its bytes
    "script sent",  # no answer of Redis was read
    "script answered",  # it is not known whether the append-only file holds the records
    "replying",  # all is done but the reply to the client
)
WRITER_POINTS = (
    "called",  # nothing was sent
    "half sent",  # the first frames were given to gRPC
    "sent",  # all frames were, and no reply was read
    "replied",  # the reply is there, and was told to nobody
    "noted",  # between two calls
)


Action = Literal["die", "kill Redis", "stop Redis"]


class Trap(NamedTuple):
    """What happens when a point is reached for the ``number``-th time since the trap before."""

    point: str
    number: int
    action: Action = "die"


class Traps:
    """Traps of one process, one after the other."""

    def __init__(self, traps: Iterable[Trap], server: redis.Redis | None = None) -> None:
        """``server``: the Redis that traps kill or stop."""
        self._left, self._seen = deque(traps), 0
        self._lock, self._springing = threading.Lock(), threading.Lock()
        self._server, self._hit = server, 0

    def due(self, point: str) -> Trap | None:
        """The trap that lies at this point, if it is its turn."""
        with self._lock:
            if not self._left or self._left[0].point != point:
                return None
            self._seen += 1
            if self._seen < self._left[0].number:
                return None
            self._seen = 0
            return self._left.popleft()

    def spring(self, trap: Trap) -> None:
        if trap.action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        with self._springing:
            process = until_deadline("looking for Redis", self._redis_process, deadline=DEADLINE)
            os.kill(process, signal.SIGKILL if trap.action == "kill Redis" else signal.SIGSTOP)
            self._hit = process

    def _redis_process(self) -> int:
        """The Redis that answers, once it is another than the one that was hit last."""
        assert self._server is not None
        process = int(self._server.info("server")["process_id"])
        if process == self._hit:
            raise redis.ConnectionError(f"process {process} is ending")
        return process

    def reached(self, point: str) -> None:
        if trap := self.due(point):
            self.spring(trap)

    def around(self, owner: type, name: str, *, before: str = "", after: str = "") -> None:
        """Let a method of a class pass these points."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def passing(*arguments: Any, **named: Any) -> Any:
            self.reached(before)
            result = method(*arguments, **named)
            self.reached(after)
            return result

        setattr(owner, name, passing)


def _lay_on_scripts(traps: Traps) -> None:
    """Traps on the way of ``add.lua`` to Redis: a process that is killed may have sent any part of its bytes."""
    send, run = redis.connection.AbstractConnection.send_packed_command, RetryingRedis._run

    adding = threading.local()

    def sending(connection: Any, command: Any, check_health: bool = True) -> None:
        packed = command if isinstance(command, bytes) else b"".join(command)
        add = getattr(adding, "now", False) and b"EVALSHA" in packed
        if add and (trap := traps.due("within the script")):
            cut = len(packed) // 2
            send(connection, [packed[:cut]], check_health)
            packed, check_health = packed[cut:], False
            traps.spring(trap)
        send(connection, [packed], check_health)
        if add:
            traps.reached("script sent")

    def running(link: RetryingRedis, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        adding.now = name == "add"
        answer = run(link, name, keys, arguments)
        if name == "add":
            traps.reached("script answered")
        return answer

    redis.connection.AbstractConnection.send_packed_command = sending  # type: ignore[method-assign]
    RetryingRedis._run = running  # type: ignore[method-assign,assignment]


def serve(directory: Path, address: str, traps: Sequence[Trap] = (), patience: float = 5.0) -> None:
    """``rlep pool serve`` over the Redis of a directory, with traps.

    ``patience``: seconds that it waits for an answer of Redis, 5 where nobody changes them.
    """
    log = os.open(directory.parent / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    server = EmbeddedRedis(directory)
    os.environ["RLEP_REDIS_PASSWORD_FILE"] = str(server.password_file)
    client = connect(server.url)
    assert isinstance(client, redis.Redis)
    laid = Traps(traps, client)
    laid.around(PoolServicer, "Add", before="arrived", after="replying")
    laid.around(Store, "insert", before="read")
    _lay_on_scripts(laid)
    connection.connect = functools.partial(connect, timeout=patience)  # type: ignore[assignment]
    sys.argv = ["rlep", "pool", "serve", "--redis", server.url, "--listen", address]
    main()


def write(address: str, number: int, file: Path, end: Path, traps: Sequence[Trap]) -> None:
    """Add the batches of a writer, the first that it has no answer for onwards, until the file ``end`` is there."""
    laid, history = Traps(traps), History(file)
    wire.RECORDS_A_FRAME = 3  # three frames a batch
    laid.around(PoolClient, "_call", before="called", after="replied")
    with PoolClient(address, deadline=2 * DEADLINE) as client:
        add = client._stub.Add

        def adding(frames: Iterator[Any], **way: Any) -> Any:
            def watched() -> Iterator[Any]:
                yield next(frames)
                yield next(frames)
                laid.reached("half sent")
                yield from frames
                laid.reached("sent")

            return add(watched(), **way)

        client._stub.Add = adding
        for serial in count(history.following(pool_writer.BATCH), pool_writer.BATCH):
            if end.exists():
                return
            history.begin(serial)
            history.end(serial, client.add(pool_writer.batch_of(number, serial)))
            laid.reached("noted")


class Processes:
    """Starts servers and writers; all are ended with the block."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._started: list[BaseProcess] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = self._context.Process(target=function, args=arguments, daemon=True)
        process.start()
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.join()


@contextmanager
def processes() -> Iterator[Processes]:
    """All that were started end with the block."""
    started = Processes()
    try:
        yield started
    finally:
        started.end()


def status_of(process: BaseProcess) -> int:
    """Waits for the end of a process; its exit status, -9 for one that was killed."""
    process.join(DEADLINE)
    assert process.exitcode is not None, f"{process.name} has not ended within {DEADLINE:g} s"
    return process.exitcode
