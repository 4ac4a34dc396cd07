"""A pool on a server: the verbs of ``Pool`` over gRPC, from a notebook or from a job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import numpy as np
from grpc.experimental import ChannelOptions
from pydantic import TypeAdapter

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError, RecordRefused, RlepError
from rlep.core.heap import keep_freed_memory
from rlep.core.types import AddReport, Trajectory
from rlep.services.pool.lease import PoolLease
from rlep.services.pool.rpc.access import is_local, split_address
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.proto.pool_pb2_grpc import PoolStub
from rlep.services.pool.rpc.replies import (
    MAX_POOLS,
    MAX_PROMPTS,
    contents_in,
    digest_in,
    ids_in,
    names_in,
    page_in,
)
from rlep.services.pool.rpc.tls import ClientTls, speaks_tls
from rlep.services.pool.rpc.wire import (
    ERROR_KEY,
    LONGEST_DEADLINE,
    MESSAGE_BYTES,
    PROMPTS_A_CALL,
    insert_calls,
    sample_of,
)
from rlep.services.pool.storage.codec import Precision, encode, name_of, raw_id
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.storage.scan import Held, trajectory_of
from rlep.services.pool.values import PoolStats

T = TypeVar("T")

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # A connection that fell silent is given up within 20 s: the call is then made again within its deadline.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of other pings, behind which one that keeps alive waits
    ("grpc.keepalive_permit_without_calls", 1),
    (ChannelOptions.SingleThreadedUnaryStream, 1),  # frames reach the caller without passing through another thread
)
_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,  # by a server that stops: only ``close`` and a stopping server cancel a call
}
_NO_TLS, _UNKNOWN_CA, _REFUSED = "WRONG_VERSION_NUMBER", "CERTIFICATE_VERIFY_FAILED", "Connection refused"
"""What gRPC's details have where a server has no TLS, where its certificate is not trusted, and where there is no server."""
_CLOSED = "Socket closed"
"""What they have where a server closed the connection, as one with TLS does at the first byte that is none."""
_ERRORS: dict[str, type[RlepError]] = {
    kind.__name__: kind for kind in (ConfigError, RecordRefused, PoolError, DeadlineExceeded)
}
_STATS = TypeAdapter(PoolStats)
_GIVE_BACK_S = 5.0
"""Longest wait for a lease to be given back; it ends by itself a little later."""


class PoolClient:
    """One pool on a pool server. Safe to share between threads; every call may be repeated and has a deadline.

    A server that is away or restarts is tried again until the deadline. Errors are those of
    ``Pool``, with the server's reason; ``PoolError`` also where the token does not allow a call.
    """

    def __init__(
        self,
        address: str,
        *,
        pool: str = "",
        token: str | None = None,
        tls: ClientTls | Path | str | bool | None = None,
        deadline: float = 30.0,
        writer: str = "main",
        writer_epoch: int | None = None,
        precision: Precision = "float16",
        vocabulary: int | None = None,
        minimum: int | None = None,
    ) -> None:
        """``address`` is ``host:port``, or ``unix:PATH``; an empty ``pool`` is the server's default one.

        ``deadline``: of each call in seconds, retries included; at most 540.
        ``tls``: True for a certificate of a public authority, a path for one of this authority, ``ClientTls`` for a
        certificate of one's own. A token beyond loopback needs it. ``writer``, ``writer_epoch``, ``precision``, ``vocabulary``:
        see ``PoolOptions``; ``minimum``: of draws that state none, None takes the pool's. Nothing is connected before the
        first call. Raises ``ConfigError``.
        """
        if not address.startswith("unix:/"):
            split_address(address)
        # Only then: a name that does not resolve yet is tried again by each call.
        if token is not None and not tls and not is_local(address):
            raise ConfigError(f"a token would travel to {address} in the clear: give tls=")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
            raise ConfigError("a token is printable ASCII without spaces, e.g. the text of a token file, stripped")
        if not 0 <= deadline <= LONGEST_DEADLINE:  # nor NaN
            raise ConfigError(f"deadline = {deadline}: give 0 to {LONGEST_DEADLINE:g} seconds, which a server accepts")
        keep_freed_memory()
        self.name = pool
        """Of the pool; empty: the server's default one."""
        self._address, self._pool, self._deadline = address, pool, deadline
        self._named_writer = writer
        self._writer, self._epoch = (writer, writer_epoch) if writer_epoch is not None else ("", 0)
        self._precision, self._vocabulary, self._minimum = precision, vocabulary or 0, minimum
        self._lease: PoolLease | None = None
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        self._tls = bool(tls)
        if tls:
            files = tls if isinstance(tls, ClientTls) else ClientTls(None if tls is True else Path(tls))
            self._channel = grpc.secure_channel(address, files.credentials(), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._stub, self._closed = PoolStub(self._channel), False

    def __repr__(self) -> str:
        return f"PoolClient({self._address!r}, pool={self._pool!r})"

    def close(self) -> None:
        """Close the connection; calls in flight, and later ones, raise ``PoolError``. A lease is given back before."""
        if self._lease is not None:
            # The server may be gone: an exit does not wait for it as a call does.
            self._deadline = min(self._deadline, _GIVE_BACK_S)
            self._lease.close()
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self,
        *,
        tokenizer_digest: str | None = None,
        cap: int | None = None,
        read_only: bool = False,
        holder: str | None = None,
    ) -> PoolStats:
        """Say what is needed of the pool before it is used, and make it where there is none; what it holds.

        Other verbs may be used without. A pool that ``add`` makes keeps 64 trajectories a prompt.

        Args:
            tokenizer_digest: of the token ids; None takes those of the pool, which only a reader may.
            cap: most trajectories a prompt, fixed when the pool is made; None takes the pool's own, 64 where it is new.
            read_only: nothing is made.
            holder: a word that nobody else has, then who this is: another holder is refused while this one lives, and every
                opening has the writer's next epoch. None: anybody may write.

        Raises:
            PoolError: the pool has another tokenizer or cap, is not there, or is another holder's.
        """
        request = pb.OpenRequest(pool=self._pool, tokenizer_digest=tokenizer_digest or "", read_only=read_only)
        request.cap, request.minimum, request.vocabulary = cap or 0, self._minimum or 0, self._vocabulary
        if holder is not None:
            # Before ``Open``, whose epoch would shut out the holder that this one is refused for.
            self._lease = self._lease or PoolLease(self.lease, self._pool, holder)
            request.writer = self._named_writer
        reply = self._call("opening", self._stub.Open, request)
        if holder is not None:
            self._writer, self._epoch = self._named_writer, reply.epoch
        return self._read("opening", _stats_in, reply)

    def lease(self, holder: str, seconds: float) -> tuple[str, float] | None:
        """Take, renew, or with 0 seconds give back the right to write alone; else who has it and for how many seconds."""
        request = pb.LeaseRequest(pool=self._pool, holder=holder, milliseconds=int(1000 * seconds))
        reply = self._call("taking its lease", self._stub.Lease, request)
        return (reply.holder, reply.milliseconds / 1000) if reply.holder else None

    def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store verified trajectories, each at most once, however often it is delivered. A pool that does not exist is made.

        One that cannot be stored is refused with its reason; the others still land. When this returns, all that it
        reports as inserted is in the server's append-only file. Raises ``PoolError`` (sealed, fenced, not allowed, full)
        or ``DeadlineExceeded``; the same batch may then be added again.
        """
        refused: list[tuple[str, str]] = []
        records = []
        for trajectory in trajectories:
            try:
                records.append((trajectory.prompt_id, encode(trajectory, precision=self._precision)))
            except RecordRefused as error:
                refused.append((name_of(trajectory), str(error)))
        report = self.add_records(records)
        return replace(report, refused=(*refused, *report.refused))

    def add_records(self, records: Sequence[tuple[str, bytes]], *, quarantined: bool = False) -> AddReport:
        """Store records (prompt id, record) as they are; ``quarantined`` sets them aside instead, whatever their verdict."""
        inserted = duplicates = evicted = 0
        refused: list[tuple[str, str]] = []
        for frames in insert_calls([pb.Record(prompt_id=prompt_id, record=record) for prompt_id, record in records]):
            # Every attempt sends this name, by which a server that has done it knows the call again.
            head = pb.AddFrame(pool=self._pool, call=secrets.token_hex(8), writer=self._writer, epoch=self._epoch)
            head.vocabulary, head.quarantined = self._vocabulary, quarantined
            head.total = sum(len(frame.records) for frame in frames)
            reply = self._call("adding", lambda sent, **way: self._stub.Add(iter(sent), **way), [head, *frames])
            inserted, duplicates, evicted = (
                inserted + reply.inserted,
                duplicates + reply.duplicates,
                evicted + reply.evicted,
            )
            refused += ((item.content_id, item.reason) for item in reply.refused)
        return AddReport(inserted, duplicates, tuple(refused), evicted)

    def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int, minimum: int | None = None
    ) -> Sample:
        """At most ``count`` trajectories of each prompt, uniformly and without replacement: see ``Pool.sample``.

        ``minimum`` None: the pool's. ``Sample.below_minimum`` names the prompts that gave none because of it.
        """
        minimum = self._minimum if minimum is None else minimum
        try:
            request = pb.SampleRequest(pool=self._pool, prompt_ids=prompt_ids, count=count, seed=seed, step=step)
            request.minimum = 0 if minimum is None else minimum
        except (TypeError, ValueError) as error:
            raise ConfigError(f"a sample of count {count}, seed {seed}, step {step}: {error}") from None
        if minimum is not None and minimum < 1:
            raise ConfigError(f"minimum = {minimum}: a draw needs 1 trajectory of a prompt or more")
        return self._call("sampling", self._sampled(self._stub.Sample, prompt_ids), request)

    def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Sample:
        """Trajectories by name (prompt id → content ids), in this order. Raises ``PoolError`` where one is not there."""
        if not wanted:
            return sample_of((), [pb.SampleFrame()])
        request = _named_request(self._pool, wanted)
        return self._call("reading", self._sampled(self._stub.Fetch, [*wanted]), request)

    def contents(self, prompt_ids: Sequence[str] | None = None, *, quarantined: bool = False) -> dict[str, list[str]]:
        """Content ids, ascending, of these prompts, or of all that have any."""
        held: dict[str, list[str]] = {}
        empty = prompt_ids is not None
        if prompt_ids is None and not quarantined:
            prompt_ids = self.prompt_ids()  # of a call without names the server reads all names for each page
        for start in range(0, len(prompt_ids) if prompt_ids is not None else 1, PROMPTS_A_CALL):
            request = pb.ContentsRequest(pool=self._pool, quarantined=quarantined)
            request.prompt_ids.extend((prompt_ids or ())[start : start + PROMPTS_A_CALL])
            while True:
                reply = self._call("listing", self._stub.Contents, request)
                for prompt_id, ids in self._read("listing", contents_in, reply, request.prompt_ids, request.after):
                    if ids or empty:
                        held[prompt_id] = [content_id.hex() for content_id in ids]
                self._check_bound("listing", len(held), MAX_PROMPTS)
                request.after = reply.next
                if not reply.next:
                    break
        return held

    def get(self, content_id: str, prompt_id: str) -> Trajectory | None:
        """One trajectory, or None where the pool does not hold it. Raises ``RecordRefused`` where it is damaged."""
        request = pb.GetRequest(pool=self._pool, prompt_id=prompt_id, content_id=content_id)
        record = self._call("reading", self._stub.Get, request).record
        return trajectory_of(Held(prompt_id, raw_id(content_id), record, quarantined=False)) if record else None

    def remove(
        self, prompt_id: str, content_ids: Sequence[str], *, quarantine: bool = False, quarantined: bool = False
    ) -> int:
        """Take trajectories out of the pool; how many there were.

        Args:
            prompt_id: of the trajectories.
            content_ids: of those that go.
            quarantine: refuse them if they come again.
            quarantined: they are among those set aside; they may come again then.
        """
        request = pb.RemoveRequest(pool=self._pool, prompt_id=prompt_id, content_ids=content_ids)
        request.quarantine, request.quarantined = quarantine, quarantined
        return int(self._call("removing", self._stub.Remove, request).count)

    def export(self, *, after: str = "") -> Iterator[Trajectory]:
        """Every trajectory, by prompts in ascending order; ``after`` goes on behind a prompt id.

        A pool that is written to meanwhile is seen prompt by prompt.
        """
        return map(trajectory_of, self.records(after=after))

    def export_page(self, after: str) -> tuple[list[Trajectory], str | None]:
        """At most 1024 trajectories behind a prompt id or another page, and where this page ends: None for the last one."""
        page, following = self._page(pb.ExportRequest(pool=self._pool, after=after))
        return list(map(trajectory_of, page)), following or None

    def records(
        self,
        prompt_ids: Sequence[str] | None = None,
        *,
        quarantined: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Iterator[Held]:
        """Records as they are stored, by prompt and content id in ascending order, some hundred in memory at a time.

        Args:
            prompt_ids: only of these; None: of all.
            quarantined: also those set aside, after the others of their prompt.
            after: begin behind this prompt id.
            limit: at most so many.
        """
        left = limit
        ascending = None if prompt_ids is None else sorted(set(prompt_ids))
        for start in range(0, 1 if ascending is None else len(ascending), PROMPTS_A_CALL):
            request = pb.ExportRequest(pool=self._pool, after=after, quarantined=quarantined)
            request.prompt_ids.extend((ascending or ())[start : start + PROMPTS_A_CALL])
            while left is None or left > 0:
                request.limit = left or 0
                page, request.after = self._page(request)
                yield from page
                left = None if left is None else left - len(page)
                if not request.after:
                    break

    def _page(self, request: pb.ExportRequest) -> tuple[list[Held], str]:
        """A page of records, and where the next one begins."""
        return self._call("exporting", lambda asked, **way: page_in(self._stub.Export(asked, **way), asked), request)

    def seal(self) -> str:
        """Close the pool for good; returns its digest. May be repeated."""
        return self._read("sealing", digest_in, self._call("sealing", self._stub.Seal, self._request))

    def digest(self) -> str:
        """32 hex digits that name the pool's present content."""
        doing = "reading the digest"
        return self._read(doing, digest_in, self._call(doing, self._stub.Digest, self._request))

    def stats(self) -> PoolStats:
        """Coverage, size, and where the trajectories come from."""
        return self._read("counting", _stats_in, self._call("counting", self._stub.Stats, self._request))

    def prompt_ids(self) -> list[str]:
        """Prompts with at least one trajectory, ascending."""
        return self._listed("listing prompts", self._stub.ListPrompts, MAX_PROMPTS)

    def prompt_page(self, limit: int) -> list[str]:
        """The first ``limit`` (at most 4096) prompts with at least one trajectory, ascending."""
        request = pb.ListRequest(pool=self._pool, limit=limit)
        doing = "listing prompts"
        return self._read(doing, names_in, self._call(doing, self._stub.ListPrompts, request), "")

    def content_ids(self, prompt_id: str) -> list[str]:
        """Content ids of a prompt's trajectories, ascending."""
        request = pb.ListTrajectoriesRequest(pool=self._pool, prompt_id=prompt_id)
        return self._read("listing", ids_in, self._call("listing", self._stub.ListTrajectories, request))

    def names(self) -> list[str]:
        """Pools of this server that the token may read."""
        return self._listed("listing pools", self._stub.ListPools, MAX_POOLS, pools=True)

    @property
    def _request(self) -> pb.PoolRequest:
        return pb.PoolRequest(pool=self._pool)

    def _listed(self, what: str, method: Callable[..., pb.ListReply], most: int, *, pools: bool = False) -> list[str]:
        """All pages of a listing."""
        names: list[str] = []
        request = pb.ListRequest(pool=self._pool)
        while True:
            reply = self._call(what, method, request)
            names += self._read(what, names_in, reply, request.after, pools=pools)
            self._check_bound(what, len(names), most)
            if not reply.next:
                return names
            request.after = reply.next

    @staticmethod
    def _sampled(method: Callable[..., Iterable[pb.SampleFrame]], prompt_ids: Sequence[str]) -> Callable[..., Sample]:
        return lambda request, **way: sample_of(prompt_ids, method(request, **way))

    def _check_bound(self, what: str, count: int, most: int) -> None:
        if count > most:
            raise PoolError(f"{what} at pool server {self._address}: it lists more than {most} names")

    def _read(self, what: str, reader: Callable[..., T], *reply: Any, **options: Any) -> T:
        """What a reader takes from a reply. Raises ``PoolError`` with the server's address where that is not as it should be."""
        try:
            return reader(*reply, **options)
        except RecordRefused:  # names the record
            raise
        except (PoolError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise PoolError(f"{what} at pool server {self._address}: its reply cannot be used: {error}") from None

    def _call(self, what: str, attempt: Callable[..., T], request: object) -> T:
        """The result of a call that may be repeated, tried until the deadline.

        Ours, not ``tenacity``: each attempt gets what is left of one deadline.
        """
        end, pause = time.monotonic() + self._deadline, 0.05
        while not self._closed:
            try:
                return self._read(what, attempt, request, timeout=end - time.monotonic(), metadata=self._metadata)
            except PoolError:  # also of a ValueError that gRPC raises on a closed channel
                if not self._closed:
                    raise
                break
            except grpc.RpcError as error:
                trailing = dict(error.trailing_metadata() or ())
                if self._closed:
                    break
                tls = any(sign in str(error.details()) for sign in (_NO_TLS, _UNKNOWN_CA))
                hopeless = tls or error.code() not in _AGAIN or self._needs_tls(str(error.details()))
                if hopeless or time.monotonic() + pause > end:
                    raise self._error(what, error, trailing) from None
            time.sleep(pause)
            # Of many clients of a server that restarts each comes once a second.
            pause = min(2 * pause, 1.0)
        raise PoolError(f"{what} at pool server {self._address}: this client was closed")

    def _needs_tls(self, details: str) -> bool:
        """Tell whether a server that closed the connection speaks TLS; one that starts again closes connections, too."""
        if self._tls or _CLOSED not in details or self._address.startswith("unix:"):
            return False
        return speaks_tls(*split_address(self._address))

    def _error(self, what: str, error: Any, trailing: dict[str, str]) -> RlepError:
        """The server's own error, or what became of the call."""
        if kind := _ERRORS.get(trailing.get(ERROR_KEY, "")):
            return kind(error.details())
        where, details = f"{what} at pool server {self._address}", str(error.details())
        if _NO_TLS in details:
            return PoolError(f"{where}: it has no TLS; use grpc:// (in Python, no tls=) on its own machine")
        if _UNKNOWN_CA in details:
            hint = "check pool.ca_file (in Python, tls=), and that the certificate is for this host"
            return PoolError(f"{where}: its certificate cannot be verified: {hint}")
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return PoolError(f"{where}: {details}: check pool.token_file (in Python, token=)")
        if _REFUSED in details:
            hint = "nobody listens there; is `rlep pool serve` running, and is this its address?"
            return DeadlineExceeded(f"{where}: not done within {self._deadline:g} s: {hint}")
        if self._needs_tls(details):
            return PoolError(f"{where}: it speaks TLS: use grpcs:// with pool.ca_file (in Python, tls=)")
        if error.code() in _AGAIN or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{where}: not done within {self._deadline:g} s: {details}")
        return PoolError(f"{where}: {error.code().name.lower().replace('_', ' ')}: {details}")


def _stats_in(reply: pb.OpenReply | pb.StatsReply) -> PoolStats:
    return _STATS.validate_json(reply.json)


def _named_request(pool: str, wanted: Mapping[str, Sequence[str]]) -> pb.FetchRequest:
    """Raises ``RecordRefused`` for what is no content id."""
    return pb.FetchRequest(
        pool=pool,
        prompt_ids=[*wanted],
        counts=np.array([len(ids) for ids in wanted.values()], "<i4").tobytes(),
        ids=b"".join(raw_id(content_id) for ids in wanted.values() for content_id in ids),
    )
