"""The small fields of a record: fixed numbers, then length-prefixed UTF-8 strings, in the order written here.

Fields that came later lie among the metadata, under keys of their own: a verdict's score and its parts, how tokens were sampled
beside temperature, top-p and top-k, the template digest, and of an episode its environment's digest and the run lengths of its
mask, the policy's tokens first. Records without them are as they always were, and a reader that knows none of them reads the
others too; but for a mask, which the record's flags name, so that none takes an environment's tokens for the policy's.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rlep.core.errors import RecordRefused
from rlep.core.scores import score_fault
from rlep.core.types import (
    STATUSES,
    BoolArray,
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
_SCORE, _PART = "verdict.score", "verdict.part."
_SAMPLING, _TEMPLATE = "provenance.sampling", "prompt.template"
_ENVIRONMENT, _MASK = "provenance.environment", "episode.sampled"
_DIGESTS = {_TEMPLATE: "template_digest", _ENVIRONMENT: "environment_digest"}
_OWN = (_SAMPLING, *_DIGESTS, _MASK)
_NUMBERED = ("temperature", "top_p", "top_k", "max_tokens")
"""Fields of ``Sampling`` that a record has as numbers of its own."""
_WRITTEN = {part.name: getattr(Sampling(), part.name) for part in fields(Sampling) if part.name not in _NUMBERED}
"""The other fields, with their defaults."""
_RUNS = re.compile(r"(0|[1-9][0-9]{0,6})(,[1-9][0-9]{0,6}){2,}")
"""An odd number of them: the last is the policy's."""


class FromMetadata(NamedTuple):
    """Fields of a trajectory that are stored among its metadata, and the metadata that are the user's own."""

    score: float | None
    parts: dict[str, float]
    sampling: Sampling
    template_digest: str
    environment_digest: str
    mask: str
    """Run lengths, the policy's first, e.g. ``5,3,7``; empty: all tokens are the policy's."""
    rest: dict[str, str]


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
    metadata = stored_metadata(trajectory)
    for key in sorted(metadata):
        strings += (key, metadata[key])
    return _packed_numbers(trajectory, len(metadata)) + b"".join(map(_packed_string, strings))


def stored_metadata(trajectory: Trajectory) -> dict[str, str]:
    """The metadata with the fields of ``FromMetadata`` among them. Raises ``RecordRefused`` where it has such keys itself."""
    if not isinstance(trajectory.metadata, Mapping) or not all(isinstance(key, str) for key in trajectory.metadata):
        _refuse("the metadata are not a mapping whose keys are texts")
    metadata, verdict, provenance = dict(trajectory.metadata), trajectory.verdict, trajectory.provenance
    if taken := [key for key in metadata if _of_a_score(key) or key in _OWN]:
        _refuse(
            f"metadata key {taken[0]!r:.80} is kept for a verdict's score, the sampling, a digest or an episode's mask"
        )
    if sampled := _written(provenance.sampling):
        metadata[_SAMPLING] = sampled
    metadata |= {key: digest for key, name in _DIGESTS.items() if (digest := getattr(provenance, name))}
    if trajectory.sampled is not None:
        _check_mask(trajectory, trajectory.sampled)
        if is_masked(trajectory):
            metadata[_MASK] = _mask_text(trajectory.sampled)
    if verdict.score is None:
        if verdict.parts:
            _refuse("a verdict has named parts but no score")
        return metadata
    if fault := score_fault(verdict.score, verdict.parts):
        _refuse(fault)
    metadata[_SCORE] = repr(float(verdict.score))
    return metadata | {_PART + name: repr(float(value)) for name, value in verdict.parts.items()}


def from_metadata(metadata: Mapping[str, str], numbered: Sampling) -> FromMetadata:
    """The fields in what ``stored_metadata`` gave, of a record whose sampling has the numbers of ``numbered``.

    Raises ``RecordRefused`` where they are no such.
    """
    rest = dict(metadata)
    score, parts = _score_in({key: rest.pop(key) for key in metadata if _of_a_score(key)})
    sampling = _sampling_in(rest.pop(_SAMPLING, None), numbered)
    texts = [rest.pop(key, None) for key in (*_DIGESTS, _MASK)]
    if "" in texts:
        _refuse("a digest or an episode's mask is empty")
    template, environment, mask = (text or "" for text in texts)
    return FromMetadata(score, parts, sampling, template, environment, mask, rest)


def is_masked(trajectory: Trajectory) -> bool:
    """Tell whether some of its tokens are an environment's."""
    return trajectory.sampled is not None and not trajectory.sampled.all()


def _check_mask(trajectory: Trajectory, sampled: BoolArray) -> None:
    if not isinstance(sampled, np.ndarray) or sampled.dtype != np.bool_ or sampled.ndim != 1:
        _refuse("an episode's mask is not a one-dimensional array of bool")
    if fault := trajectory.badly_sampled:
        _refuse(f"the response {fault}")


def _mask_text(sampled: BoolArray) -> str:
    changes = np.flatnonzero(np.diff(sampled, prepend=True))
    return ",".join(map(str, np.diff(changes, prepend=0, append=len(sampled)).tolist()))


def mask_of(text: str, length: int) -> BoolArray | None:
    """``[T]`` from its run lengths; None where the text is empty. Raises ``RecordRefused`` where it is no mask of T tokens."""
    if not text:
        return None
    if not _RUNS.fullmatch(text):
        _refuse(f"the mask {text!r:.80} is not written as this rlep writes it")
    runs = np.array(text.split(","), dtype=np.int64)
    if len(runs) % 2 == 0 or runs.sum() != length:
        _refuse(f"the mask of an episode of {length} tokens is {text!r:.80}")
    return np.repeat(np.arange(len(runs)) % 2 == 0, runs)


def _score_in(texts: Mapping[str, str]) -> tuple[float | None, dict[str, float]]:
    if not texts:
        return None, {}
    try:
        numbers = {key: float(text) for key, text in texts.items()}
    except (TypeError, ValueError):
        _refuse("a verdict's score or part is no number")
    if any(repr(numbers[key]) != text for key, text in texts.items()) or _SCORE not in numbers:
        _refuse("a verdict's score is missing or not written as this rlep writes it")
    score = numbers.pop(_SCORE)
    parts = {key.removeprefix(_PART): value for key, value in numbers.items()}
    if fault := score_fault(score, parts):
        _refuse(fault)
    return score, parts


def _sampling_in(text: str | None, numbered: Sampling) -> Sampling:
    if text is None:
        return numbered
    try:
        read = json.loads(text).items()
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in read}
        sampling = replace(numbered, **values)
    except (TypeError, ValueError, AttributeError, RecursionError):
        _refuse(f"the sampling {text!r:.80} cannot be read")
    if _written(sampling) != text:
        _refuse(f"the sampling {text!r:.80} is not written as this rlep writes it")
    return sampling


def _written(sampling: Sampling) -> str:
    """The fields without a number of their own that are not as by default, as JSON; empty where all are."""
    numbers, texts, tokens = (sampling.min_p, sampling.repetition_penalty), sampling.stop, sampling.stop_tokens
    if not all(type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in numbers):
        _refuse(f"min_p or repetition_penalty {numbers!r:.80} is no finite number from 0")
    if not (isinstance(texts, tuple) and all(type(text) is str for text in texts)):
        _refuse(f"stop {texts!r:.80} holds something else than texts")
    if not (isinstance(tokens, tuple) and all(type(token) is int for token in tokens)):
        _refuse(f"stop_tokens {tokens!r:.80} holds something else than token ids")
    values = {name: getattr(sampling, name) for name in _WRITTEN}
    changed = {name: value for name, value in values.items() if value != _WRITTEN[name]}
    return json.dumps(changed, sort_keys=True) if changed else ""


def _of_a_score(key: str) -> bool:
    return key == _SCORE or key.startswith(_PART)


def _packed_numbers(trajectory: Trajectory, pairs: int) -> bytes:
    verdict, provenance, sampling = trajectory.verdict, trajectory.provenance, trajectory.provenance.sampling
    floats = (sampling.temperature, sampling.top_p, trajectory.created_at, verdict.seconds)
    if not all(math.isfinite(value) and value >= 0 for value in floats):
        _refuse(f"temperature, top_p, creation time or seconds {floats} is negative or not finite")
    try:
        return _NUMBERS.pack(
            STATUSES.index(verdict.status),
            verdict.extracted is not None,
            pairs,
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
    numbered = Sampling(temperature, top_p, top_k, max_tokens)
    also = from_metadata(dict(zip(metadata[::2], metadata[1::2], strict=True)), numbered)
    return Trajectory(
        prompt_id=prompt_id,
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=finish_reason,
        verdict=Verdict(
            STATUSES[status],
            extracted if has_extracted else None,
            verifier,
            verifier_version,
            path,
            seconds,
            also.score,
            also.parts,
        ),
        provenance=Provenance(
            policy, version, tokenizer, also.sampling, mode, dtype, also.template_digest, also.environment_digest
        ),
        created_at=created_at,
        sample_id=sample_id,
        metadata=also.rest,
        sampled=mask_of(also.mask, len(tokens)),
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
