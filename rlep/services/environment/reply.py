"""Answer of a process to one call."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

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
