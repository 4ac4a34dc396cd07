"""A record as a row of named fields, for files that other programs read, and back without any loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from rlep.core.errors import RecordRefused
from rlep.core.types import Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.storage.codec import Precision, encode, precision_of
from rlep.services.pool.storage.details import from_metadata, mask_of, stored_metadata
from rlep.services.pool.storage.scan import Held, trajectory_of

TEXTS = (
    "prompt_id", "content_id", "finish_reason", "status", "verifier", "verifier_version", "path", "policy_digest",
    "tokenizer_digest", "logprobs_mode", "logprobs_dtype", "sample_id",
)  # fmt: skip
INTEGERS = ("policy_version", "top_k", "max_tokens")
NUMBERS = ("seconds", "temperature", "top_p", "created_at")
FLAGS = ("quarantined",)
OPTIONAL = ("extracted", "precision")
"""Texts that may be null. ``precision``: how the pool stores the log-probs, ``float16`` or ``float32``."""


@dataclass(frozen=True, slots=True, eq=False)
class ExportRow:
    """One record of a pool with what the pool knows of it."""

    trajectory: Trajectory
    precision: Precision | None
    """Type that its log-probs are stored in; None where it has none."""
    quarantined: bool


def line_of(held: Held) -> ExportRow:
    """A record as a line. Raises ``RecordRefused``, naming it, where it is damaged."""
    return ExportRow(trajectory_of(held), precision_of(held.record), held.quarantined)


def fields_of(line: ExportRow) -> dict[str, Any]:
    """The row of a line, token ids and log-probs as arrays; ``metadata`` has what ``stored_metadata`` puts there."""
    trajectory = line.trajectory
    verdict, origin = trajectory.verdict, trajectory.provenance
    return {
        "prompt_id": trajectory.prompt_id,
        "content_id": trajectory.content_id,
        "finish_reason": trajectory.finish_reason,
        "status": verdict.status,
        "verifier": verdict.verifier,
        "verifier_version": verdict.version,
        "path": verdict.path,
        "policy_digest": origin.policy_digest,
        "tokenizer_digest": origin.tokenizer_digest,
        "logprobs_mode": origin.logprobs_mode,
        "logprobs_dtype": origin.logprobs_dtype,
        "sample_id": trajectory.sample_id,
        "policy_version": origin.policy_version,
        "top_k": origin.sampling.top_k,
        "max_tokens": origin.sampling.max_tokens,
        "seconds": verdict.seconds,
        "temperature": origin.sampling.temperature,
        "top_p": origin.sampling.top_p,
        "created_at": trajectory.created_at,
        "quarantined": line.quarantined,
        "extracted": verdict.extracted,
        "precision": line.precision,
        "metadata": dict(sorted(stored_metadata(trajectory).items())),
        "tokens": trajectory.tokens,
        "logprobs": trajectory.logprobs,
    }


def json_of(line: ExportRow) -> str:
    """One line as JSON for a terminal, which may show no other character than ASCII; without a newline."""
    fields = fields_of(line)
    fields["tokens"] = fields["tokens"].tolist()
    fields["logprobs"] = None if fields["logprobs"] is None else fields["logprobs"].tolist()
    return json.dumps(fields, allow_nan=False, separators=(",", ":"))


def _metadata(stored: str | Mapping[str, str]) -> Mapping[str, str]:
    """Read a row's metadata: JSON text, or in exports of manifest version 1 a map."""
    try:
        found = json.loads(stored) if isinstance(stored, str) else stored
    except (ValueError, RecursionError):
        raise RecordRefused("its metadata is no JSON") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise RecordRefused("its metadata is no JSON object of texts")
    return found


def line_from(fields: Mapping[str, Any]) -> tuple[ExportRow, bytes]:
    """The line of a row and its record; the shard's columns have given its fields their kinds.

    Raises ``RecordRefused`` with the reason, also where the content id is not that of the tokens.
    """
    if fields["precision"] not in ((None,) if fields["logprobs"] is None else get_args(Precision)):
        raise RecordRefused(f"precision {fields['precision']!r} does not fit the log-probs")
    numbered = Sampling(float(fields["temperature"]), float(fields["top_p"]), fields["top_k"], fields["max_tokens"])
    also = from_metadata(_metadata(fields["metadata"]), numbered)
    trajectory = Trajectory(
        prompt_id=fields["prompt_id"],
        tokens=fields["tokens"],
        logprobs=fields["logprobs"],
        finish_reason=fields["finish_reason"],
        verdict=Verdict(
            fields["status"],
            fields["extracted"],
            fields["verifier"],
            fields["verifier_version"],
            fields["path"],
            float(fields["seconds"]),
            also.score,
            also.parts,
        ),
        provenance=Provenance(
            fields["policy_digest"],
            fields["policy_version"],
            fields["tokenizer_digest"],
            also.sampling,
            fields["logprobs_mode"],
            fields["logprobs_dtype"],
            also.template_digest,
            also.environment_digest,
        ),
        created_at=float(fields["created_at"]),
        sample_id=fields["sample_id"],
        metadata=also.rest,
        sampled=mask_of(also.mask, len(fields["tokens"])),
    )
    line = ExportRow(trajectory, fields["precision"], fields["quarantined"])
    record = encode(trajectory, precision=line.precision or "float16")
    if trajectory.content_id != fields["content_id"]:
        raise RecordRefused(f"content id {fields['content_id']} is not that of its tokens: {trajectory.content_id}")
    return line, record
