"""The small fields of a record: fixed numbers, then length-prefixed UTF-8 strings, in the order written here."""

from __future__ import annotations

import math
import struct
from typing import NoReturn

from rlep.core.errors import RecordRefused
from rlep.core.types import (
    STATUSES,
    FinishReason,
    Float32Array,
    Int32Array,
    Provenance,
    Sampling,
    Trajectory,
    Verdict,
)

# status, has an extracted text, metadata pairs; policy version; top_k, max_tokens; temperature, top_p, created, seconds
_NUMBERS = struct.Struct("<BBHqiidddd")
_LENGTH = struct.Struct("<H")
_STRINGS = 9
_LONGEST = 0xFFFF


def pack_details(trajectory: Trajectory) -> bytes:
    """Verdict, provenance and metadata as bytes. Raises ``RecordRefused`` with the reason."""
    verdict, provenance = trajectory.verdict, trajectory.provenance
    if trajectory.finish_reason not in ("stop", "length"):
        _refuse(f"finish reason {trajectory.finish_reason!r} is neither stop nor length")
    if verdict.status not in STATUSES:
        _refuse(f"verdict status {verdict.status!r} is unknown")
    strings = [
        verdict.extracted or "",
        verdict.verifier,
        verdict.version,
        verdict.path,
        provenance.policy_digest,
        provenance.tokenizer_digest,
        provenance.logprobs_mode,
        provenance.logprobs_dtype,
        trajectory.sample_id,
    ]
    for key in sorted(trajectory.metadata):
        strings += (key, trajectory.metadata[key])
    return _packed_numbers(trajectory) + b"".join(map(_packed_string, strings))


def _packed_numbers(trajectory: Trajectory) -> bytes:
    verdict, provenance, sampling = trajectory.verdict, trajectory.provenance, trajectory.provenance.sampling
    floats = (sampling.temperature, sampling.top_p, trajectory.created_at, verdict.seconds)
    if not all(math.isfinite(value) and value >= 0 for value in floats):
        _refuse(f"temperature, top_p, creation time or seconds {floats} is negative or not finite")
    try:
        return _NUMBERS.pack(
            STATUSES.index(verdict.status),
            verdict.extracted is not None,
            len(trajectory.metadata),
            provenance.policy_version,
            sampling.top_k,
            sampling.max_tokens,
            *floats,
        )
    except (struct.error, OverflowError) as error:
        raise RecordRefused(f"a number of the provenance or the verdict does not fit its field: {error}") from None


def _packed_string(text: str) -> bytes:
    if not isinstance(text, str):
        _refuse(f"a text field or metadata value is {type(text).__name__}, not str")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        _refuse("a text field holds a lone surrogate, which UTF-8 has no bytes for")
    if len(raw) > _LONGEST:
        _refuse(f"a text field takes {len(raw)} bytes; at most {_LONGEST}")
    return _LENGTH.pack(len(raw)) + raw


def unpack_details(
    details: bytes,
    *,
    prompt_id: str,
    tokens: Int32Array,
    logprobs: Float32Array | None,
    finish_reason: FinishReason,
) -> Trajectory:
    """The trajectory whose small fields are ``details``. Raises ``RecordRefused`` where they are not exactly that."""
    if len(details) < _NUMBERS.size:
        _refuse(f"details of {len(details)} bytes are too short")
    status, has_extracted, pairs, version, top_k, max_tokens, *floats = _NUMBERS.unpack_from(details)
    temperature, top_p, created_at, seconds = floats
    if status >= len(STATUSES) or has_extracted > 1 or not all(map(math.isfinite, floats)):
        _refuse("details hold an unknown verdict status or a number that is not finite")
    strings = _unpacked_strings(details, _STRINGS + 2 * pairs)
    extracted, verifier, verifier_version, path, policy, tokenizer, mode, dtype, sample_id, *metadata = strings
    return Trajectory(
        prompt_id=prompt_id,
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=finish_reason,
        verdict=Verdict(
            STATUSES[status], extracted if has_extracted else None, verifier, verifier_version, path, seconds
        ),
        provenance=Provenance(policy, version, tokenizer, Sampling(temperature, top_p, top_k, max_tokens), mode, dtype),
        created_at=created_at,
        sample_id=sample_id,
        metadata=dict(zip(metadata[::2], metadata[1::2], strict=True)),
    )


def _unpacked_strings(details: bytes, count: int) -> list[str]:
    strings, at = [], _NUMBERS.size
    for _ in range(count):
        if at + _LENGTH.size > len(details):
            _refuse(f"details end before the last of {count} text fields")
        (length,) = _LENGTH.unpack_from(details, at)
        at += _LENGTH.size + length
        if at > len(details):
            _refuse(f"details end before the last of {count} text fields")
        try:
            strings.append(details[at - length : at].decode())
        except UnicodeDecodeError:
            _refuse("a text field is not UTF-8")
    if at != len(details):
        _refuse(f"{len(details) - at} bytes follow the last text field")
    return strings


def _refuse(reason: str) -> NoReturn:
    raise RecordRefused(reason)
