"""An episode as a page shows it: a conversation of turns, calls of tools and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlep.core.episodes import ToolCall
from rlep.core.transcript import Turn, arguments_of, parts_of, split_text, turns_of
from rlep.view.rollouts import Row
from rlep.view.templating import MOST_TEXT

MOST_TURNS = 200
"""Turns that a page shows of an episode."""
MOST_GIST = 90
"""Characters of an answer that are shown before it is unfolded."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call of a tool."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    """Name and value of each argument."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn and what answered it."""

    turn: Turn
    tokens: tuple[int, int] | None
    """Those that the policy sampled, and those that the environment wrote; None where the file does not say."""

    @property
    def said(self) -> list[str | CallView]:
        """Texts and calls in their order."""
        return [
            CallView(one.name, tuple(arguments_of(one).items())) if isinstance(one, ToolCall) else one
            for one in self.turn.said
        ]

    @property
    def answers(self) -> list[tuple[str, str | None]]:
        """(one line, whole text) of each answer; None where the line is all of it."""
        return [_folded(answer) for answer in self.turn.answers]


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """An episode: all its parts as text, and the first turns."""

    parts: tuple[str, ...]
    """The policy's and the environment's in turn, the policy's first."""
    turns: tuple[TurnView, ...]
    count: int
    """All turns."""
    unsampled: int | None
    """Tokens that the environment wrote."""


def episode_of(
    text: str, ends: Sequence[int | None] | None, sampled: Sequence[bool | None] | None
) -> EpisodeView | None:
    """The episode whose text has parts that end at ``ends``; None without: no episode, or a file of an older version."""
    if ends is None:
        return None
    most = 2 * MOST_TURNS
    if len(text) > MOST_TEXT:
        most = min(most, sum((end or 0) < MOST_TEXT for end in ends[:most]) + 1)
    parts = split_text(text[:MOST_TEXT], ends[: most + 1])[:most]
    counts: list[int] = []
    if sampled is not None:
        mask = np.array([one is not False for one in sampled], dtype=np.bool_)
        counts = [*np.diff(parts_of(mask)[:most], prepend=0).tolist(), 0]
    turns = [
        TurnView(turn, (counts[at], counts[at + 1]) if at + 1 < len(counts) else None)
        for at, turn in zip(range(0, len(parts), 2), turns_of(parts), strict=True)
    ]
    unsampled = None if sampled is None else sum(one is False for one in sampled)
    return EpisodeView(tuple(parts), tuple(turns), (len(ends) + 1) // 2, unsampled)


def episode_in(row: Row) -> EpisodeView | None:
    """The episode of a row of texts, or of an evaluation's samples; None where it is none."""
    text = row["text"] if "text" in row else row["response"]
    return episode_of(str(text), row["ends"], row.get("sampled"))


def _folded(text: str) -> tuple[str, str | None]:
    line, more, _ = text.strip().partition("\n")
    if not more and len(line) <= MOST_GIST:
        return line or "nothing", None
    return f"{line[:MOST_GIST]} …", text
