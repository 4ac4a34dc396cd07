"""Result of a job, as a worker reports it. Code of others runs in workers: a report of another shape is no result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlep.core.scores import score_fault
from rlep.core.types import Status
from rlep.services.worker.frames import FrameError


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a job."""

    status: Status
    extracted: str | None
    seconds: float
    failure: str = ""
    """Of a ``crashed`` job ``Kind: message``, and a traceback where the user's function raised; else empty."""
    score: float | None = None
    """The score that the user's function returned; ``status`` is then that of a threshold of 1."""
    parts: Mapping[str, float] = field(default_factory=dict)


_Plain = tuple[Status, str | None, float, str]
_Scored = tuple[Status, str | None, float, str, float, dict[str, float]]
_SHAPES: dict[int, TypeAdapter[Any]] = {
    4: TypeAdapter(_Plain, config=ConfigDict(strict=True, allow_inf_nan=False)),
    6: TypeAdapter(_Scored, config=ConfigDict(strict=True, allow_inf_nan=False)),
}
"""Values -> their types, in the order of ``Judgement.reply``."""


def read_reply(message: object) -> Reply:
    """Read what ``Judgement.reply`` made. Raises FrameError for anything else."""
    shape = _SHAPES.get(len(message)) if isinstance(message, list) else None
    if not isinstance(message, list) or shape is None:
        raise FrameError(f"no result of a job: {message!r:.80}")
    try:
        reply = Reply(*shape.validate_python(tuple(message)))
    except ValidationError as error:
        raise FrameError(f"no result of a job: {error.errors(include_url=False)[0]['msg']}") from None
    fault = score_fault(reply.score, reply.parts) if reply.score is not None else ""
    if fault or reply.seconds < 0:
        raise FrameError(f"no result of a job: {fault or f'it took {reply.seconds:g} s'}")
    return reply
