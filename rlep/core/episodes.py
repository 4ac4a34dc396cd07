"""Values of episodes: what a policy does in an environment, and what it is told. Tuples, which travel cheaply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rlep.core.seeds import seed_for
from rlep.core.types import UNDECIDED, Int32Array

EpisodeStatus = Literal["open", "ended", "crashed", "timeout", "out_of_memory"]
"""``open``: it goes on. ``ended``: by its environment. The others: it or its worker failed, whatever the policy did."""


class ToolCall(NamedTuple):
    """One call of a tool, as a policy wrote it."""

    name: str
    arguments: str
    """A JSON object."""
    fault: str = ""
    """Why it cannot be read, for the policy: then it is not carried out."""


Action = str | Sequence[ToolCall]
"""A turn: the text for ``step``, or the calls of tools that were read from it."""


class Observation(NamedTuple):
    """Answer of an environment to a turn, or to the beginning of an episode."""

    texts: tuple[str, ...] = ()
    """One for each call of a tool, in order; of ``step`` and ``reset`` one, or none where they return None."""
    status: EpisodeStatus = "open"
    reason: str = ""
    """How it failed, for the user."""

    @property
    def failed(self) -> bool:
        """The environment or its worker failed, whatever the policy did."""
        return self.status in UNDECIDED


class Suffix(NamedTuple):
    """Tokens that follow a turn of the policy's, up to its next one."""

    tokens: Int32Array
    """``[n]``, none of them sampled."""
    cut: int
    """Texts of the observation that were too long, and were cut."""


def played_in(environment_digest: str) -> str:
    """Say what responses are whose records carry this digest; empty: of no environment."""
    return f"episodes of environment {environment_digest}" if environment_digest else "responses without an environment"


def reset_seed(prompt_id: str) -> int:
    """The seed of what an environment draws: the same in every episode of a prompt, so that replays belong to the question."""
    return seed_for(0, "environment", prompt_id)
