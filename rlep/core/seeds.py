"""An address for every random draw: the same address always gives the same number, wherever it is asked for."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(run_seed: int, *address: int | str) -> int:
    """The 63-bit seed of one random draw, e.g. ``seed_for(run_seed, "replay", step, prompt_id)``.

    A pure function of its arguments on every machine and Python version. Each part is hashed with its kind and
    length, so ``("a", "bc")`` and ``("ab", "c")`` or ``1`` and ``"1"`` are different addresses.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"rlep.seed")
    for part in (run_seed, *address):
        kind, raw = ("i", str(part)) if isinstance(part, int) else ("s", part)
        encoded = raw.encode()
        digest.update(f"{kind}{len(encoded)}:".encode() + encoded)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator_for(run_seed: int, *address: int | str) -> np.random.Generator:
    """A numpy generator (Philox, counter-based) seeded by ``seed_for`` of the same address."""
    return np.random.Generator(np.random.Philox(seed_for(run_seed, *address)))
