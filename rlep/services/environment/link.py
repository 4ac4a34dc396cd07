"""One worker process as its parent sees it: calls go down a pipe without waiting for answers, which come in their order."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlep.core.errors import ConfigError, EnvironmentFault
from rlep.core.waiting import silence
from rlep.services.environment.reply import UNKNOWN, CallReply, read_call_reply
from rlep.services.worker import frames
from rlep.services.worker.jail import Limits
from rlep.services.worker.process import START_SECONDS, end_process, start_process

GRACE_S = 5.0
"""Beyond its deadline a call may heed its interrupt for so long; then its process is killed."""
_LOOK_S = 0.5
"""Time between two looks at the call in work."""
_STARTS = 3
"""Starts that may fail one after the other."""


@dataclass(eq=False, slots=True)
class _Sent:
    """A call that is not answered."""

    number: int
    call: Sequence[Any]
    answer: asyncio.Future[CallReply]
    losses: int = 0
    """Processes that were lost while it was the next to be answered."""


class WorkerLink:
    """A killable process, started again whenever it is lost. Its loop's thread must outlive it: the kernel sees to that."""

    def __init__(self, task: str, limits: Limits, lost: Callable[[WorkerLink, str], None]) -> None:
        """``lost``: told that the episodes it had are gone, and why. Within a running loop."""
        self._task, self._limits, self._tell_lost = task, limits, lost
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: deque[_Sent] = deque()
        """In the order of their answers; the first is in work."""
        self._numbers = itertools.count()
        self._deaths: list[CallReply] = []
        """Of runners, since the last answer; each had at most one call in work."""
        self._read, self._unwritten = bytearray(), bytearray()
        self._writing = False
        self._since = 0.0
        """Time of the last sign of life, or at which the first call was sent."""
        self._ready, self._answered = False, False
        self._recycled, self._may_recycle = False, False
        """It said that it begins anew; it has answered since."""
        self._failed_starts = 0
        self._fault: Exception | None = None
        """It serves no more."""
        self._looking: asyncio.TimerHandle | None = None
        self.tools: asyncio.Future[Sequence[Mapping[str, Any]]] = silence(self._loop.create_future())
        """JSON schemas of the class's tools, or why it cannot serve."""
        self.episodes = 0
        """Kept by whoever places episodes."""

    def start(self) -> None:
        """Start the process; ``tools`` tells when it serves."""
        try:
            self._process = start_process("rlep.services.environment.worker", self._task, self._limits)
        except OSError as error:
            self._give_up(EnvironmentFault(f"no environment process can be started: {error}"))
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._loop.add_reader(self._process.stdout.fileno(), self._receive)
        self._ready, self._answered, self._since = False, False, self._loop.time()
        self._recycled, self._may_recycle = False, False
        self._look()

    def send(self, *call: Any) -> asyncio.Future[CallReply]:
        """Send a call: its kind, its episode, and what it takes. The answer may be ConfigError or EnvironmentFault."""
        sent = _Sent(next(self._numbers), call, self._loop.create_future())
        self._put(sent)
        return sent.answer

    def close(self) -> None:
        """End the process; what is not answered is cancelled."""
        self._end()
        self._fault = self._fault or EnvironmentFault("the environments are closed")
        for sent in self._sent:
            sent.answer.cancel()
        self._sent.clear()

    def _put(self, sent: _Sent) -> None:
        if self._fault is not None:
            silence(sent.answer).set_exception(self._fault)
            return
        if self._ready and not self._sent:
            self._since = self._loop.time()
        self._sent.append(sent)
        self._unwritten += frames.encode([sent.number, *sent.call])
        if not self._writing:  # together with what else is sent in this turn of the loop
            self._writing = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        """Write what the pipe takes now, and the rest when it takes more."""
        self._writing = False
        if self._process is None or not self._unwritten:
            return
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        self._loop.remove_writer(descriptor)
        try:
            while self._unwritten:
                del self._unwritten[: os.write(descriptor, self._unwritten)]
        except BlockingIOError:
            self._writing = True
            self._loop.add_writer(descriptor, self._write)
        except BrokenPipeError:  # the end of its answers is seen, too
            self._unwritten.clear()

    def _receive(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            chunk = os.read(self._process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        if not chunk:
            self._lose("it ended")
            return
        self._read += chunk
        process = self._process
        try:
            while self._process is process:
                message, used = frames.take(self._read)
                if not used:
                    return
                del self._read[:used]
                self._take(message)
        except frames.FrameError as error:
            self._lose(str(error))

    def _take(self, message: Any) -> None:
        """Act on a message. Raises FrameError for one that means nothing, or comes out of its turn."""
        self._since = self._loop.time()
        match message:
            case [int(number), answer]:
                self._answer(number, read_call_reply(answer))
            case {"tools": list(schemas)} if not self._ready:
                self._ready, self._failed_starts = True, 0
                if not self.tools.done():
                    self.tools.set_result(schemas)
            case {"failed": str(why)} if not self._answered:
                self._give_up(ConfigError(why))
            case {"recycled": True} if self._may_recycle:
                self._recycled, self._may_recycle = True, False
            case {"ended": str()} if self._recycled:  # it had no episode
                self._recycled = False
            case {"ended": "crashed" | "recycled" | "timeout" | "out_of_memory" as status, "how": str(how)}:
                self._died(status, how)
            case _:
                raise frames.FrameError(f"its message is out of turn: {message!r:.80}")

    def _answer(self, number: int, reply: CallReply) -> None:
        """Settle a call, and those before it, which ended their runners. Raises FrameError for a call that does not wait."""
        if not self._sent or not self._sent[0].number <= number <= self._sent[-1].number:
            raise frames.FrameError(f"it answered call {number}, which does not wait")
        self._answered = self._may_recycle = True
        while self._sent and self._sent[0].number < number:
            before = sum(sent.number < number for sent in self._sent)
            deaths = self._deaths[-before:] or [CallReply(UNKNOWN)]
            self._settle(deaths[0])
            self._deaths = deaths[1:]
        self._deaths.clear()
        if self._sent and self._sent[0].number == number:
            self._settle(reply)

    def _settle(self, reply: CallReply) -> None:
        answer = self._sent.popleft().answer
        if not answer.done():  # nobody may wait any more
            answer.set_result(reply)

    def _died(self, status: str, how: str) -> None:
        """Its runner is gone with all its episodes. The next one reads on; its first answer shows what this one had read.

        Raises FrameError where more runners ended than calls wait.
        """
        calls = sum(sent.call[0] != "probe" for sent in self._sent)
        if len(self._deaths) >= calls + _STARTS:
            raise frames.FrameError(f"its runners ended {len(self._deaths) + 1} times, the last with {how:.80}")
        self._deaths.append(CallReply("crashed" if status == "recycled" else status, None, how))
        self._tell_lost(self, f"its process was lost, in a call of another episode or from outside: {how}")
        self.send("probe")

    def _lose(self, how: str, status: str = "") -> None:
        """End what is left of the process and start another, which begins what this one had not begun.

        ``status``: of the call in work, if that is to blame.
        """
        self._end()
        if self._fault is not None:
            return
        if self._ready:
            if status and self._sent:
                self._settle(CallReply(status, None, how))
            self._tell_lost(self, f"its process was lost: {how}")
        else:
            self._failed_starts += 1
        if self._failed_starts >= _STARTS:
            self._give_up(EnvironmentFault(f"environment processes ended {_STARTS} times before they served: {how}"))
            return
        self._deaths.clear()
        left, self._sent = list(self._sent), deque()
        if left:
            left[0].losses += 1
        self.start()
        for sent in left:
            if sent.call[0] == "begin" and sent.losses < _STARTS:
                self._put(sent)
            elif not sent.answer.done():
                sent.answer.set_result(CallReply(UNKNOWN))

    def _give_up(self, fault: Exception) -> None:
        self._fault = fault
        self._end()
        waiting: list[asyncio.Future[Any]] = [self.tools, *(sent.answer for sent in self._sent)]
        for answer in waiting:
            if not answer.done():
                silence(answer).set_exception(fault)
        self._sent.clear()

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._looking is not None:
            self._looking.cancel()
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        self._loop.remove_reader(process.stdout.fileno())
        self._loop.remove_writer(process.stdin.fileno())
        self._read.clear()
        self._unwritten.clear()
        with suppress(OSError):
            end_process(process)

    def _look(self) -> None:
        """Kill a process that takes too long, and look again later."""
        self._looking = self._loop.call_later(_LOOK_S, self._look)
        waits = self._loop.time() - self._since
        if not self._ready and waits > START_SECONDS:
            self._lose(f"no sign of life for {START_SECONDS:g} s")
        elif self._ready and self._sent and waits > self._limits.wall_seconds + GRACE_S:
            self._lose(f"it could not be interrupted after {self._limits.wall_seconds:g} s, and was killed", "timeout")
