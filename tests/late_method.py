"""A method of replay that decides when the rewards of a group are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlep.core.types import Trajectory
from rlep.methods.replay_method import ReplayMethod

LATE = "python:tests.late_method:Failures"


class Failures(ReplayMethod):
    """Replays where no fresh response is correct."""

    replays: ClassVar[Mapping[str, Any]] = {"count": 1}

    def accepts(self, fresh: Sequence[Trajectory]) -> bool:
        return not any(member.correct for member in fresh)
