"""A game that counts its turns: whatever is acted twice is seen in the next answer."""

from __future__ import annotations


class Tally:
    """Counts its turns."""

    def reset(self, **row: object) -> None:
        """Begin at 0."""
        self._turns = 0

    def step(self, text: str) -> str | None:
        """Count; "end" ends it.

        Args:
            text: What is said.
        """
        self._turns += 1
        return None if text == "end" else str(self._turns)

    def get_reward(self) -> float:
        """A tenth for a turn."""
        return self._turns / 10
