"""Live replay: RLEP's terms on the run's own earlier successes, without phase 1 and collection."""

from __future__ import annotations

from rlep.methods.replay_method import ReplayMethod


class Live(ReplayMethod):
    """The responses of this run that were correct come back in later steps; a single earlier success is replayed."""

    replays = {"source": "live", "minimum": 1}
