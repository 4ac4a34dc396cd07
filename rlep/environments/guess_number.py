"""Guess the number: a game of several turns, each told whether the number is higher or lower."""

from __future__ import annotations

import random
import re


class GuessNumber:
    """A number from 1 to ``highest``; the reward is 1 once it was named, else 0."""

    def reset(self, highest: int = 100, number: int | None = None, **row: object) -> str | None:
        """Draw a number, or take the row's; both may be columns. The question of a row with a ``number`` is complete as it is."""
        self._found = False
        if number is not None:
            self._number = number
            return None
        self._number = random.randint(1, highest)
        return f"I think of a whole number from 1 to {highest}. Name one, and I say whether mine is higher or lower."

    def step(self, text: str) -> str | None:
        """Answer a guess; the last number in the text counts.

        Args:
            text: A text with a number.

        Returns:
            A hint, or nothing once the number was named.
        """
        numbers = re.findall(r"\d+", text)
        if not numbers or len(numbers[-1]) > 9:
            return "Name a number."
        guess = int(numbers[-1])
        self._found = guess == self._number
        if self._found:
            return None
        return "Higher." if guess < self._number else "Lower."

    def get_reward(self) -> float:
        """Return 1 where the number was found."""
        return float(self._found)
