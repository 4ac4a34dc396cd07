"""A divergence to recent successes in place of their policy gradient: DyJR (arXiv 2603.16157).

The loss of a fresh token is what it is without replay. A replayed token's is β times the Jensen-Shannon divergence of the policy
and of the policy that sampled it, estimated on the sample: it pulls only where the policy has moved away, whatever the
advantage. DyJR finds that replaying successes by policy gradient collapses diversity, and that this keeps it.

Different here: β is constant, and the buffer is the newest successes of each question, of at most ``replay.max_age`` steps,
where DyJR has one queue over all questions whose size follows the training; replays belong to a question of the batch and stay
in the baseline of its group. The estimate by samples of μ and β = 1 are of this implementation: of the paper the abstract
alone was at hand.
"""

from __future__ import annotations

from rlep.methods.live import Live


class DyJr(Live):
    """Up to four recent successes of each question keep their probability."""

    replays = {**Live.replays, "count": 4, "selection": "newest", "max_age": 32}
    terms = {"weight": 0.0, "old_logprobs": "behaviour", "divergence": 1.0}
