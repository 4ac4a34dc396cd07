"""RLEP (arXiv 2507.07451), the paper's method, and what every other one starts from."""

from __future__ import annotations

from rlep.methods.replay_method import ReplayMethod


class Rlep(ReplayMethod):
    """Two of an offline pool's verified successes join each group; their ratio is the one to the start of the step, clipped.

    Questions: the data's, in order. Replays: M of each prompt's, uniformly without replacement, added to its G fresh responses.
    Terms: those of fresh responses. ``replay.count`` is M; without it nothing is replayed (phase 1).
    """
