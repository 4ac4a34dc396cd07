"""A process that adds batches of 8 until it is killed: ``python pool_writer.py URL PASSWORD_FILE NUMBER``.

Writes one line with the first serial number of each batch that was acknowledged as inserted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from rlep.core.types import Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions

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


def main(url: str, password_file: Path, number: int) -> None:
    options = PoolOptions(cap=100_000, deadline=60.0)
    with Pool.open(
        url, "pool", tokenizer_digest="tokenizer-digest", password_file=password_file, options=options
    ) as pool:
        for serial in count(0, BATCH):
            report = pool.add(batch_of(number, serial))
            if (report.inserted, report.duplicates, report.refused) != (BATCH, 0, ()):
                sys.exit(f"batch {serial} of writer {number}: {report}")
            sys.stdout.write(f"{serial}\n")
            sys.stdout.flush()


def acknowledged(number: int, lines: Sequence[str]) -> set[str]:
    """Content ids of all that a writer's lines acknowledge; a last line without its end was cut by the kill."""
    whole = [line for line in lines if line.endswith("\n")]
    return {trajectory.content_id for line in whole for trajectory in batch_of(number, int(line))}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
