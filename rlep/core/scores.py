"""Values allowed for a verifier's score and its named parts: one rule for the user's function, the pool and the metric names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

PART_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
"""A part's name, as a regular expression; it stands in a metric's name."""
MAX_PARTS = 16
"""Most parts of one score."""


class OutOfRange(ValueError):
    """A function gave a score outside of the range that it declares: those inside were read by a wrong measure, too."""


def score_fault(score: float, parts: Mapping[str, float]) -> str:
    """Describe the fault of a score, which lies in [0, 1], or of its parts, which are finite; empty without a fault."""
    if not 0.0 <= score <= 1.0:
        return f"score {score} does not lie in [0, 1]"
    if len(parts) > MAX_PARTS:
        return f"{len(parts)} named parts; at most {MAX_PARTS}"
    for name, value in parts.items():
        if not re.fullmatch(PART_NAME, name):
            return f"part name {name!r:.80} is not a letter and at most 63 letters, digits or _.-"
        if not math.isfinite(value):
            return f"part {name} = {value} is not finite"
    return ""
