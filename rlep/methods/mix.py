"""An SFT term on stored successes beside the RL of fresh responses: CHORD (arXiv 2508.11408), and MIX of Trinity-RFT.

CHORD minimises (1 − μ) · L_GRPO(fresh) + μ · L_SFT(expert). Here the loss of a fresh token is what it is without replay, and a
replayed token's is −β · log π: its policy term has weight 0, so no ratio, clip or advantage acts on it.

Different here: both are parts of one mean over all tokens, so β is μ/(1 − μ) of a batch with as many tokens of either; β is
constant, where CHORD-μ decays it, and alike for all tokens, where CHORD-φ weighs each by its probability; the replay belongs
to a question of the batch and stays in the baseline of its group, where CHORD draws experts apart. β = 0.1 is of this
implementation. The responses are the pool's: an imported teacher's, or the run's own with ``replay.source = "live"``.
"""

from __future__ import annotations

from rlep.methods.replay_method import ReplayMethod


class Mix(ReplayMethod):
    """One stored success of each question is imitated."""

    replays = {"count": 1, "minimum": 1}
    terms = {"weight": 0.0, "imitation": 0.1}
