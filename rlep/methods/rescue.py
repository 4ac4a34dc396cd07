"""Rescue: an earlier success joins only the groups without one, as in ARPO (github.com/dvlab-research/ARPO).

ARPO replaces one of the failed responses by the stored success; here it is added. It keeps 8 per question, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlep.core.types import Trajectory
from rlep.methods.live import Live


class Rescue(Live):
    """Live replay, one response a group, where no fresh response is correct."""

    replays = {**Live.replays, "count": 1, "per_question": 8}

    def accepts(self, fresh: Sequence[Trajectory]) -> bool:
        """Decide by whether all fresh responses failed."""
        return not any(member.correct for member in fresh)
