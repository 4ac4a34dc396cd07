"""Use of one engine's KV cache, from the statistics that vLLM makes after each of its steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheUse:
    """The largest share of the KV cache in use, and the requests set back for lack of room, since they were last taken."""

    share: float = 0.0
    preempted: int = 0

    def note(self, share: float, preempted: int) -> None:
        """Take in one step of the engine: the share in use now, and how many requests the step set back."""
        self.share = max(self.share, share)
        self.preempted += preempted

    def take(self) -> tuple[float, int]:
        """Return both, and begin anew."""
        taken = self.share, self.preempted
        self.share, self.preempted = 0.0, 0
        return taken
