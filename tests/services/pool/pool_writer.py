"""Batches that a writer adds one after the other, so that whoever checks them can tell what each had."""

from __future__ import annotations

import numpy as np

from rlep.core.types import Provenance, Sampling, Trajectory, Verdict

BATCH = 8


def batch_of(number: int, serial: int) -> list[Trajectory]:
    """The batch that a writer adds from this serial number on."""
    return [
        Trajectory(
            prompt_id=f"q{one % 5}",
            tokens=np.array([number, one], np.int32),
            logprobs=None,
            finish_reason="stop",
            verdict=Verdict("correct", "42", "math", "1"),
            provenance=Provenance("policy", 3, "tokenizer-digest", Sampling()),
            created_at=1000.0,
            sample_id="train/3/q0/1",
            metadata={},
        )
        for one in range(serial, serial + BATCH)
    ]
