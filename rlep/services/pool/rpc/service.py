"""The verbs of the gRPC service: each checks the caller, opens the pool, and replies or refuses with the reason."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import grpc
import numpy as np

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError, RecordRefused, RlepError
from rlep.core.types import AddReport, Trajectory
from rlep.services.pool.lease import LONGEST_LEASE_S
from rlep.services.pool.pool import Pool, entry_of
from rlep.services.pool.rpc.access import Caller, Role
from rlep.services.pool.rpc.gatekeeper import Context, Gatekeeper, Refused, end
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.proto import pool_pb2_grpc
from rlep.services.pool.rpc.registry import UNFENCED, PoolRegistry, Writer
from rlep.services.pool.rpc.wire import (
    CALL_BYTES,
    ERROR_KEY,
    PROMPTS_A_CALL,
    RECORDS_A_CALL,
    RECORDS_A_PAGE,
    export_frames,
    first_frame,
    named_ids,
    sample_frames,
)
from rlep.services.pool.storage.codec import decode
from rlep.services.pool.storage.reading import RecordsRemoved, fetched
from rlep.services.pool.storage.sample import Stored
from rlep.services.pool.storage.scan import scan
from rlep.services.pool.storage.store import NewRecord
from rlep.services.pool.values import PoolOptions

_PROMPTS_A_PAGE = 256
_NAMES_A_PAGE = 4096
_LARGEST_DRAW = 1 << 20
_LOWEST_LOGPROB, _HIGHEST_LOGPROB = -1e5, 1.0
"""Of a token: a probability is at most 1, with room for rounding; beyond the lower end sums lose their digits."""
_CALL = re.compile(r"[0-9a-f]{16}")
_CODES = {
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    RecordRefused: grpc.StatusCode.INVALID_ARGUMENT,
    PoolError: grpc.StatusCode.FAILED_PRECONDITION,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class PoolServicer(pool_pb2_grpc.PoolServicer):
    """See ``proto/pool.proto``. Every call has passed the ``Gatekeeper``."""

    def __init__(self, registry: PoolRegistry, *, default_pool: str, gatekeeper: Gatekeeper) -> None:
        self._registry, self._default, self._gatekeeper = registry, default_pool, gatekeeper

    def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenReply:
        with self._admitting(context) as caller:
            name = self._allowed(caller, request.pool, Role.READ if request.read_only else Role.APPEND)
            epoch = self._registry.next_epoch(name, request.writer) if request.writer else None
            options = PoolOptions(
                cap=request.cap or None,
                minimum=request.minimum or None,
                read_only=request.read_only,
                writer=request.writer or UNFENCED.name,
                writer_epoch=epoch,
                deadline=self._registry.deadline,
                vocabulary=self._stated(request.vocabulary, caller, name),
            )
            pool = self._registry.open(name, request.tokenizer_digest or None, options)
            return pb.OpenReply(json=json.dumps(asdict(pool.stats())), epoch=epoch or 0)

    def Add(self, request_iterator: Iterator[pb.AddFrame], context: Context) -> pb.AddReply:
        with self._admitting(context) as caller:
            head = next(request_iterator, pb.AddFrame())
            name = self._allowed(caller, head.pool, Role.ADMIN if head.quarantined else Role.APPEND)
            if head.call and not _CALL.fullmatch(head.call):
                raise ConfigError(f"call {head.call!r:.40} is not 16 hex digits")
            found, refused = _decoded([*head.records, *_further(request_iterator, head)])
            # No pool is made where nothing goes into it.
            if not found:
                return _add_reply(AddReport(0, 0, tuple(refused)))
            writer = Writer(head.writer, head.epoch) if head.writer else UNFENCED
            vocabulary = self._stated(head.vocabulary, caller, name)
            pool = self._registry.writer(name, writer, found[0][0].provenance.tokenizer_digest)
            entries = _acceptable(pool, found, refused, vocabulary, quarantined=head.quarantined)
            report = pool.set_aside(entries) if head.quarantined else pool.add_entries(entries, call=head.call or None)
            # Only then: it stays for ever, and one that refused every record may be mistaken.
            if vocabulary and pool.vocabulary is None and report.inserted + report.duplicates:
                self._registry.record_vocabulary(pool, vocabulary)
            return _add_reply(replace(report, refused=(*refused, *report.refused)))

    def Sample(self, request: pb.SampleRequest, context: Context) -> Iterator[pb.SampleFrame]:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            # ``count`` may be any number for all that there is: the bound is on what can come.
            count = min(request.count, pool.most())
            if count * len(request.prompt_ids) > _LARGEST_DRAW:
                raise ConfigError(
                    f"a sample of {len(request.prompt_ids)} prompts x {count}: at most {_LARGEST_DRAW} together"
                )
            minimum = request.minimum or None
            drawn = pool.draw(
                list(request.prompt_ids), request.count, seed=request.seed, step=request.step, minimum=minimum
            )
            yield from _headed(first_frame(drawn, pool.vocabulary), pool.read(drawn))

    def Fetch(self, request: pb.FetchRequest, context: Context) -> Iterator[pb.SampleFrame]:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            wanted = named_ids(request.prompt_ids, request.counts, request.ids)
            head = pb.SampleFrame(counts=request.counts, available=request.counts, vocabulary=pool.vocabulary or 0)
            yield from _headed(head, fetched(pool.store, wanted))

    def Contents(self, request: pb.ContentsRequest, context: Context) -> pb.ContentsReply:
        with self._admitting(context) as caller:
            store = self._registry.reader(self._allowed(caller, request.pool, Role.READ)).store
            names, following = list(request.prompt_ids), ""
            if not names:
                names, following = _page(store.all_prompts(), request.after, _PROMPTS_A_PAGE)
            ids = store.content_ids(names, quarantined=request.quarantined)
            return pb.ContentsReply(
                prompt_ids=names,
                counts=np.array(list(map(len, ids)), "<i4").tobytes(),
                ids=b"".join(content_id for held in ids for content_id in held),
                next=following,
            )

    def Lease(self, request: pb.LeaseRequest, context: Context) -> pb.LeaseReply:
        with self._admitting(context) as caller:
            name = self._allowed(caller, request.pool, Role.APPEND)
            if not 0 <= request.milliseconds <= 1000 * LONGEST_LEASE_S:
                raise ConfigError(
                    f"a lease of {request.milliseconds / 1000:g} s: at most {LONGEST_LEASE_S:g} s, renewed before it ends"
                )
            holder, seconds = self._registry.lease(name, request.holder, request.milliseconds / 1000) or ("", 0.0)
            if caller.role(name) < Role.ADMIN:  # whoever knows the holder's word may give its lease back
                holder = re.sub(r"^\S+", "-", holder)
            return pb.LeaseReply(holder=holder, milliseconds=int(1000 * seconds))

    def Export(self, request: pb.ExportRequest, context: Context) -> Iterator[pb.ExportFrame]:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            every = pool.store.all_prompts if request.quarantined else pool.prompt_ids
            if len(request.prompt_ids) > PROMPTS_A_CALL:
                raise ConfigError(f"an export of {len(request.prompt_ids)} prompts: name at most {PROMPTS_A_CALL}")
            prompts = sorted(set(request.prompt_ids)) or every()
            limit = request.limit if 0 < request.limit <= RECORDS_A_PAGE else RECORDS_A_PAGE
            yield from export_frames(
                scan(pool.store, prompts, quarantined=request.quarantined, after=request.after), limit
            )

    def Get(self, request: pb.GetRequest, context: Context) -> pb.GetReply:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            return pb.GetReply(record=pool.record(request.content_id, request.prompt_id) or b"")

    def Remove(self, request: pb.RemoveRequest, context: Context) -> pb.CountReply:
        with self._admitting(context) as caller:
            pool = self._registry.writer(self._allowed(caller, request.pool, Role.ADMIN))
            prompt_id, ids = request.prompt_id, list(request.content_ids)
            if request.quarantined:
                return pb.CountReply(count=pool.forget(prompt_id, ids))
            return pb.CountReply(count=pool.remove(prompt_id, ids, quarantine=request.quarantine))

    def Seal(self, request: pb.PoolRequest, context: Context) -> pb.DigestReply:
        with self._admitting(context) as caller:
            name = self._allowed(caller, request.pool, Role.ADMIN)
            digest = self._registry.writer(name).seal()
            # Readers opened it when it was not sealed, and would ask Redis for changes for ever.
            self._registry.forget(name)
            return pb.DigestReply(digest=digest)

    def Digest(self, request: pb.PoolRequest, context: Context) -> pb.DigestReply:
        with self._admitting(context) as caller:
            return pb.DigestReply(digest=self._registry.reader(self._allowed(caller, request.pool, Role.READ)).digest())

    def Stats(self, request: pb.PoolRequest, context: Context) -> pb.StatsReply:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ), fresh=True)
            return pb.StatsReply(json=json.dumps(asdict(pool.stats())))

    def ListPrompts(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            return _listed(pool.prompt_ids(), request)

    def ListTrajectories(self, request: pb.ListTrajectoriesRequest, context: Context) -> pb.ListTrajectoriesReply:
        with self._admitting(context) as caller:
            pool = self._registry.reader(self._allowed(caller, request.pool, Role.READ))
            return pb.ListTrajectoriesReply(ids=bytes.fromhex("".join(pool.content_ids(request.prompt_id))))

    def ListPools(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        with self._admitting(context) as caller:
            return _listed([name for name in self._registry.names() if caller.role(name) >= Role.READ], request)

    @contextmanager
    def _admitting(self, context: Context) -> Iterator[Caller]:
        """Name the caller, and turn an error into the status that ends the call."""
        try:
            yield self._gatekeeper.caller(context)
        except RecordsRemoved:
            # The client draws again by itself: frames of the old draw may have been sent already.
            gone = "a drawn record was removed meanwhile: ask again"
            end(context, grpc.StatusCode.ABORTED, gone, ())
        except Refused as refusal:
            end(context, refusal.code, refusal, ())
        except RlepError as error:
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
            end(context, code, error, ((ERROR_KEY, type(error).__name__),))

    def _stated(self, vocabulary: int, caller: Caller, name: str) -> int | None:
        """The vocabulary that this caller may state of the pool; one that is too small would refuse the records of others.

        An administrator may, and whoever makes the pool.
        """
        stating = vocabulary > 0 and (caller.role(name) >= Role.ADMIN or name not in self._registry.names())
        return vocabulary if stating else None

    def _allowed(self, caller: Caller, pool: str, role: Role) -> str:
        """The name of the pool, if the caller has this role there."""
        name = pool or self._default
        if (has := caller.role(name)) < role:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"pool {name}: this needs the role {role.name.lower()}; the token has {has.name.lower()}",
            )
        return name


def _further(frames: Iterator[pb.AddFrame], head: pb.AddFrame) -> Iterator[pb.Record]:
    """Records of the frames after the first.

    Raises ``ConfigError`` where all together are more than one call takes, or than the first says; ``Refused`` where they
    are fewer: gRPC ends the frames of a client that disconnected like those of a client that has sent all.
    """
    count, size = len(head.records), head.ByteSize()
    for frame in frames:
        count, size = count + len(frame.records), size + frame.ByteSize()
        if size > CALL_BYTES:
            raise ConfigError(f"an insert of more than {CALL_BYTES >> 20} MiB: send its records in several calls")
        yield from frame.records
    if count > RECORDS_A_CALL:
        raise ConfigError(f"an insert of {count} records: at most {RECORDS_A_CALL} in one call")
    if count > head.total:
        raise ConfigError(f"an insert of {count} records whose first frame says {head.total}")
    if count < head.total:
        raise Refused(
            grpc.StatusCode.ABORTED,
            f"only {count} of {head.total} records arrived, none is stored: send the call again",
        )


def _decoded(records: Sequence[pb.Record]) -> tuple[list[tuple[Trajectory, bytes]], list[tuple[str, str]]]:
    """The trajectories that can be read, each with its record, and (content id, reason) of the others."""
    found, refused = [], []
    for record in records:
        name = ""
        try:
            trajectory = decode(record.record, record.prompt_id)
            name = trajectory.content_id
            _check_logprobs(trajectory)
            found.append((trajectory, record.record))
        except RecordRefused as error:
            refused.append((name, str(error)))
    return found, refused


def _check_logprobs(trajectory: Trajectory) -> None:
    """Refuse log-probs that no model gives. Raises ``RecordRefused``."""
    logprobs = trajectory.logprobs
    if logprobs is not None and not (logprobs.min() >= _LOWEST_LOGPROB and logprobs.max() <= _HIGHEST_LOGPROB):
        raise RecordRefused(
            f"its log-probs run from {logprobs.min():g} to {logprobs.max():g}; they are within {_LOWEST_LOGPROB:g} to "
            f"{_HIGHEST_LOGPROB:g}"
        )


def _acceptable(
    pool: Pool,
    found: list[tuple[Trajectory, bytes]],
    refused: list[tuple[str, str]],
    vocabulary: int | None,
    *,
    quarantined: bool,
) -> list[NewRecord]:
    """Return what the pool takes, and say of the others why not; what is set aside may have any verdict.

    ``vocabulary``: of a pool that has none.
    """
    entries = []
    for trajectory, record in found:
        try:
            pool.check(trajectory, quarantined=quarantined, vocabulary=vocabulary)
            entries.append(entry_of(trajectory, record))
        except RecordRefused as error:
            refused.append((trajectory.content_id, str(error)))
    return entries


def _add_reply(report: AddReport) -> pb.AddReply:
    refused = [pb.Refused(content_id=content_id, reason=reason) for content_id, reason in report.refused]
    return pb.AddReply(inserted=report.inserted, duplicates=report.duplicates, refused=refused, evicted=report.evicted)


def _headed(head: pb.SampleFrame, parts: Iterable[Stored]) -> Iterator[pb.SampleFrame]:
    """The frames of these parts, the first of which says what ``head`` does."""
    left: pb.SampleFrame | None = head
    for part in parts:
        for frame in sample_frames(part):
            if left is not None:
                frame.MergeFrom(left)
                left = None
            yield frame
    if left is not None:
        yield left


def _page(names: list[str], after: str, limit: int) -> tuple[list[str], str]:
    """At most ``limit`` of the ascending names after one, and where the next page begins: empty where there is none."""
    start = bisect_right(names, after) if after else 0
    page = names[start : start + limit]
    return page, page[-1] if start + limit < len(names) else ""


def _listed(names: list[str], request: pb.ListRequest) -> pb.ListReply:
    limit = request.limit if 0 < request.limit <= _NAMES_A_PAGE else _NAMES_A_PAGE
    page, following = _page(names, request.after, limit)
    return pb.ListReply(names=page, next=following)
