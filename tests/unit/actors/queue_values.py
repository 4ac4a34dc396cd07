"""Requests, their completions, and what a job was given."""

from __future__ import annotations

import numpy as np

from rlep.actors.work_queue import GenerateCall
from rlep.core.types import Completion, Request

NO_TOKENS = np.zeros(0, dtype=np.int32)


def request_of(name: str, episode: str = "") -> Request:
    """A request."""
    return Request(name, "prompt", NO_TOKENS, 0, 0, episode=episode)


def completion_of(name: str, text: str = "") -> Completion:
    """Its completion."""
    return Completion(name, "prompt", 0, NO_TOKENS, np.zeros(0, dtype=np.float32), "stop", 0, text)


def delivered(job: GenerateCall) -> list[Completion | Exception]:
    """What a job was given so far; taken out."""
    items = []
    while not job.finished.empty():
        items.append(job.finished.get_nowait())
    return items
