"""Every record of a pool is read and checked: which are damaged, and whether the counters are right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlep.core.errors import RecordRefused
from rlep.core.progress import Advance
from rlep.core.types import beyond_vocabulary
from rlep.services.pool.storage.scan import Held, trajectory_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

EXAMPLES = 20


@dataclass(slots=True)
class Checked:
    """Findings of a check of every record."""

    records: int = 0
    quarantined: int = 0
    counted: int = 0
    """Records by the pool's own counters."""
    damaged: int = 0
    removed: int = 0
    """Damaged records that were removed."""
    examples: list[tuple[str, str, str]] = field(default_factory=list)
    """(prompt id, content id, reason) of the first few."""


def check_records(
    pool: PoolClient, *, repair: bool, vocabulary: int | None = None, advance: Advance = lambda _: None
) -> Checked:
    """Decode every record, quarantined ones too, checksum and content id included; ``repair`` removes damaged ones.

    ``vocabulary`` bounds the token ids of a pool that does not know its own (None: they are not bounded).
    """
    stats = pool.stats()
    result = Checked(counted=stats.trajectories)
    for held in pool.records(quarantined=True):
        result.records += not held.quarantined
        result.quarantined += held.quarantined
        reason = _damage(held, stats.tokenizer_digest, stats.vocabulary or vocabulary)
        if reason is not None:
            result.damaged += 1
            # A damaged pool may have as many as it has records; memory and a page hold a few.
            if len(result.examples) < EXAMPLES:
                result.examples.append((held.prompt_id, held.content_id.hex(), reason))
            if repair:
                result.removed += pool.remove(held.prompt_id, [held.content_id.hex()], quarantined=held.quarantined)
        advance(1)
    return result


def _damage(held: Held, tokenizer_digest: str, vocabulary: int | None) -> str | None:
    """Describe the fault of a record, or return None."""
    try:
        trajectory = trajectory_of(held)
    except RecordRefused as error:
        return str(error).partition(": ")[2]
    if trajectory.provenance.tokenizer_digest != tokenizer_digest:
        return f"its tokens are of tokenizer {trajectory.provenance.tokenizer_digest}"
    return beyond_vocabulary(trajectory.tokens, vocabulary) or None
