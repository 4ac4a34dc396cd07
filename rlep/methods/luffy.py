"""A teacher's responses in the manner of LUFFY (arXiv 2504.14945): import them into the pool first.

LUFFY does not clip the ratio of fresh responses, and its optimizer settings are others; those of the configuration stay.
"""

from __future__ import annotations

from rlep.methods.replay_method import ReplayMethod


class Luffy(ReplayMethod):
    """One of a group's G responses is the teacher's, whose log-probs are not known: the ratio is π itself, shaped."""

    replays = {"count": 1, "minimum": 1, "group": "replace"}
    terms = {"old_logprobs": "unit", "shaping": 0.1}
