"""Answer of a process to one call."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rlep.core.types import UNDECIDED
from rlep.services.verifier.reply import read_reply
from rlep.services.worker.frames import FrameError

UNKNOWN: Final = "unknown"
"""Status of an answer for an episode that the process does not have."""


class CallReply(NamedTuple):
    """Answer to one call."""

    status: str
    """``open``, ``ended``, one of ``UNDECIDED``, or ``UNKNOWN``."""
    text: str | None = None
    reason: str = ""
    reward: list[Any] | None = None
    """Where it ended with a reward: the judgement's ``[status, extracted, seconds, failure, …]``."""


_STATUSES = ("open", "ended", UNKNOWN, *UNDECIDED)


def read_call_reply(message: object) -> CallReply:
    """Read what a worker answered. Raises FrameError for what is no ``CallReply``."""
    match message:
        case [str(status), str() | None as text, str(reason), list() | None as reward] if status in _STATUSES:
            if reward is not None:
                read_reply(reward)
            return CallReply(status, text, reason, reward)
        case _:
            raise FrameError(f"no answer to a call: {message!r:.80}")
