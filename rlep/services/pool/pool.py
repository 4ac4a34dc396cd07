"""The experience pool: verified trajectories of many prompts, stored once each, drawn uniformly."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError, RecordRefused
from rlep.core.types import OVER_CAP, QUARANTINED, AddReport, Trajectory, beyond_vocabulary
from rlep.services.pool.storage.checks import check_room, check_server, memory_of
from rlep.services.pool.storage.codec import encode, name_of, raw_id
from rlep.services.pool.storage.connection import Client, RetryingRedis, connect, until_deadline
from rlep.services.pool.storage.draw import Drawn, Index
from rlep.services.pool.storage.reading import RecordsRemoved, read
from rlep.services.pool.storage.sample import Sample, Stored, columns
from rlep.services.pool.storage.store import Meta, NewRecord, Store
from rlep.services.pool.values import (
    COVERAGE,
    DEFAULT_CAP,
    DEFAULT_MINIMUM,
    DEFAULT_OPTIONS,
    LONGEST_LABEL,
    OTHERS,
    PoolOptions,
    PoolStats,
    held_verdict,
)

_RECORDS_A_CALL = 512
_LISTED_BYTES = 4 << 20
"""Most bytes of JSON that statistics list of policies, and of verifiers: both fit a message of the server."""


class Pool:
    """One pool in one Redis. Safe to share between threads; every operation is idempotent and has a deadline."""

    def __init__(self, link: RetryingRedis, store: Store, meta: Meta, options: PoolOptions) -> None:
        """Use ``Pool.open``."""
        self.name = store.name
        self.tokenizer_digest = meta.tokenizer_digest
        self.cap = meta.cap
        # The smaller of the two: an id that either has no row for would be an index beyond the embedding.
        self.vocabulary = min(filter(None, (meta.vocabulary, options.vocabulary)), default=None)
        """Token ids are below this; None where neither the pool nor its opener knows it."""
        self.holds = held_verdict(store.name)
        """The verdict of what it takes."""
        self.store = store
        """The keys below, for export, import and maintenance."""
        self.minimum = options.minimum or meta.minimum or DEFAULT_MINIMUM
        """A prompt with fewer trajectories gives none, unless a draw states another number."""
        self._link, self._options = link, options
        self._index = Index(store)
        self._sealed = meta.digest
        if meta.digest:
            self._freeze(meta.digest)

    @classmethod
    def open(
        cls,
        server: str | Client,
        name: str,
        *,
        tokenizer_digest: str | None,
        password_file: Path | None = None,
        options: PoolOptions = DEFAULT_OPTIONS,
    ) -> Self:
        """Open a pool, making it if there is none and ``options`` allow writing.

        ``server`` is a Redis URL (``redis://``, ``rediss://``, ``unix://``) or a client with its own retries off.
        ``tokenizer_digest`` None reads whatever tokenizer the pool has, and needs ``read_only``.
        Raises ``ConfigError`` for the options, ``PoolError`` for a server that would lose records, another tokenizer, or
        a fenced epoch, and ``DeadlineExceeded`` where Redis does not respond.
        """
        _check_options(options, tokenizer_digest)
        if isinstance(server, str):
            url, timeout = server, min(5.0, options.deadline)
            client = until_deadline(
                f"pool {name}: connecting",
                lambda: connect(url, password_file=password_file, timeout=timeout),
                deadline=options.deadline,
            )
        else:
            client = server
        link = RetryingRedis(client, deadline=options.deadline)
        check_server(link, allow_volatile=options.allow_volatile, read_only=options.read_only)
        if not options.read_only and not options.may_be_full:
            check_room(link)
        store = Store(link, name)
        meta = _opened(store, tokenizer_digest, options)
        if options.writer_epoch is not None and not options.read_only and not meta.digest:
            store.fence(options.writer, options.writer_epoch)
        return cls(link, store, meta, options)

    def close(self) -> None:
        """Close the connections."""
        self._link.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """Store verified trajectories, each at most once, however often it is delivered.

        One that cannot be stored is refused with its reason; the others still land. When this returns, all that it
        reports as inserted is in the server's append-only file. Raises ``PoolError`` (sealed, fenced, read-only, full)
        or ``DeadlineExceeded``; the same batch may then be added again.
        """
        self._check_writable()
        refused: list[tuple[str, str]] = []
        entries = [entry for trajectory in trajectories if (entry := self._entry(trajectory, refused)) is not None]
        report = self.add_entries(entries)
        return AddReport(report.inserted, report.duplicates, (*refused, *report.refused), report.evicted)

    def add_entries(self, entries: Sequence[NewRecord], *, call: str | None = None) -> AddReport:
        """Store records that are encoded already, as an export holds them. Otherwise like ``add``.

        ``call`` names at most 512 records: repeated within an hour, by whichever process, it gets the same report.
        """
        self._check_writable()
        inserted = duplicates = evicted = 0
        refused: list[tuple[str, str]] = []
        reasons = {"q": f"{QUARANTINED}: it did not pass a later verification", "c": f"{OVER_CAP} {self.cap} already"}
        # A script holds up every other client of Redis: a large batch goes in parts, each of which is atomic.
        for start in range(0, len(entries), _RECORDS_A_CALL):
            batch = entries[start : start + _RECORDS_A_CALL]
            letters, removed = self.store.insert(
                batch, cap=self.cap, writer=self._options.writer, epoch=self._options.writer_epoch, call=call
            )
            inserted += letters.count("i")
            duplicates += letters.count("d")
            evicted += removed
            refused += (
                (entry.content_id.hex(), reasons[letter])
                for entry, letter in zip(batch, letters, strict=True)
                if letter in reasons
            )
        return AddReport(inserted, duplicates, tuple(refused), evicted)

    def sample(
        self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int, minimum: int | None = None
    ) -> Sample:
        """At most ``count`` trajectories of each prompt, uniformly and without replacement.

        A prompt with fewer than ``minimum`` trajectories (None: the pool's) gives none, and the sample says so.
        A pure function of (the pool's content, seed, step, prompt id): neither the order of the prompts nor retries or
        restarts change it. Raises ``PoolError``, ``DeadlineExceeded``, or ``RecordRefused`` for a record that cannot be used.
        """
        start = time.monotonic()
        while time.monotonic() - start < self._link.deadline:
            drawn = self.draw(prompt_ids, count, seed=seed, step=step, minimum=minimum)
            try:
                parts = [part.part() for part in self.read(drawn)]
                sample = columns(prompt_ids, drawn.counts, parts, (drawn.available, drawn.minimum))
                return sample.checked(self.vocabulary)
            # Removed between draw and read. A draw of what is there now is as uniform, and as repeatable.
            except RecordsRemoved:
                continue
        raise DeadlineExceeded(f"pool {self.name}: records were removed faster than a sample could read them")

    def draw(self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int, minimum: int | None = None) -> Drawn:
        """Choose the trajectories that ``sample`` gives."""
        least = self.minimum if minimum is None else minimum
        if count < 0 or least < 1:
            raise ConfigError(f"count = {count}, minimum = {least}: wanted count >= 0 and minimum >= 1")
        self._index.refresh()
        return self._index.draw(prompt_ids, count, minimum=least, seed=seed, step=step)

    def most(self) -> int:
        """Trajectories of the prompt that has most of them."""
        self._index.refresh()
        return self._index.most()

    def read(self, drawn: Drawn) -> Iterator[Stored]:
        """The drawn records as they are stored, in parts of at most 64 prompts.

        Raises ``RecordsRemoved`` where some were removed since the draw, ``PoolError`` where that cannot be.
        """
        try:
            yield from read(self.store, drawn)
        except RecordsRemoved as error:
            # Nothing removes from a sealed pool: to draw other records would hide a loss, and change the run.
            if self._sealed:
                raise PoolError(f"pool {self.name} is sealed, but {error} of its records are gone") from None
            raise

    def record(self, content_id: str, prompt_id: str) -> bytes | None:
        """One record as it is stored, or None."""
        (blob,) = self.store.fetch([(prompt_id, [raw_id(content_id)])])
        return blob

    def remove(self, prompt_id: str, content_ids: Sequence[str], *, quarantine: bool = False) -> int:
        """Take trajectories out of the pool; how many there were. Quarantined ones are refused if they come again."""
        self._check_writable()
        return self.store.remove(prompt_id, [raw_id(content_id) for content_id in content_ids], quarantine=quarantine)

    def forget(self, prompt_id: str, content_ids: Sequence[str]) -> int:
        """Drop quarantined trajectories for good, so that they may come again; how many there were."""
        self._check_writable()
        return self.store.forget(prompt_id, [raw_id(content_id) for content_id in content_ids])

    def set_aside(self, entries: Sequence[NewRecord]) -> AddReport:
        """Quarantine records, whether the pool holds them or not: inserted are those that were not quarantined before."""
        self._check_writable()
        moved = sum(self.store.remove(entry.prompt_id, [entry.content_id], quarantine=True) for entry in entries)
        new = moved + self.store.set_aside(entries)
        return AddReport(new, len(entries) - new, ())

    def seal(self) -> str:
        """Close the pool for good: nothing is added or removed any more. Returns its digest. May be repeated."""
        if self._options.read_only:
            raise PoolError(f"pool {self.name} was opened read-only: it cannot be sealed here")
        # The mark before the digest: nobody adds in between, and after a crash in between it is sealed again.
        self.store.seal()
        self._index.freeze()
        digest = self._index.digest()
        self.store.set_digest(digest)
        self._sealed = digest
        return digest

    @property
    def sealed(self) -> str | None:
        """The digest of a sealed pool, as far as this opener knows."""
        return self._sealed

    def digest(self) -> str:
        """32 hex digits that name the pool's present content: equal where the sets of content ids are equal."""
        self._index.refresh()
        return self._index.digest()

    def prompt_ids(self) -> list[str]:
        """Prompts with at least one trajectory, ascending."""
        self._index.refresh()
        return self._index.prompt_ids()

    def content_ids(self, prompt_id: str) -> list[str]:
        """Content ids of a prompt's trajectories, ascending."""
        self._index.refresh()
        return [content_id.hex() for content_id in self._index.content_ids(prompt_id)]

    def stats(self) -> PoolStats:
        """Coverage, size, and where the trajectories come from."""
        by_policy: dict[str, int] = {}
        by_verifier: dict[str, int] = {}
        labels = self.store.labels()
        self._index.refresh()
        used, limit = memory_of(self._link)
        for text, label in labels.items():
            policy, verifier = text.split("\n")
            by_policy[policy] = by_policy.get(policy, 0) + label.records
            by_verifier[verifier] = by_verifier.get(verifier, 0) + label.records
        return PoolStats(
            trajectories=sum(label.records for label in labels.values()),
            bytes=sum(label.bytes for label in labels.values()),
            questions_with={n: self._index.questions_with(n) for n in COVERAGE},
            by_policy=_listed(by_policy),
            by_verifier=_listed(by_verifier),
            sealed=self._sealed,
            tokenizer_digest=self.tokenizer_digest,
            cap=self.cap,
            minimum=self.minimum,
            vocabulary=self.vocabulary,
            questions=self.store.questions(),
            quarantined=self.store.quarantined(),
            redis_bytes=used,
            redis_limit=limit,
        )

    def _entry(self, trajectory: Trajectory, refused: list[tuple[str, str]]) -> NewRecord | None:
        """Return what the store takes of a trajectory, or None with the reason in ``refused``."""
        try:
            self.check(trajectory)
            return entry_of(trajectory, encode(trajectory, precision=self._options.precision))
        except RecordRefused as error:
            refused.append((name_of(trajectory), str(error)))
            return None

    def check(self, trajectory: Trajectory, *, quarantined: bool = False, vocabulary: int | None = None) -> None:
        """Refuse what this pool does not hold, or does not quarantine: ``RecordRefused`` with the reason.

        ``vocabulary``: of a pool that has none.
        """
        provenance, verdict = trajectory.provenance, trajectory.verdict
        if verdict.status != self.holds and not quarantined:
            raise RecordRefused(f"its verdict is {verdict.status}; the pool holds only {self.holds} answers")
        if provenance.tokenizer_digest != self.tokenizer_digest:
            raise RecordRefused(
                f"its token ids are of tokenizer {provenance.tokenizer_digest}; the pool's is {self.tokenizer_digest}"
            )
        if wrong := beyond_vocabulary(trajectory.tokens, self.vocabulary or vocabulary):
            raise RecordRefused(f"prompt {trajectory.prompt_id}: {wrong}")

    def _check_writable(self) -> None:
        if self._options.read_only:
            raise PoolError(f"pool {self.name} was opened read-only")
        if self._sealed:
            raise PoolError(f"pool {self.name} is sealed; nothing can be added to it or removed")

    def _freeze(self, digest: str) -> None:
        self._index.freeze()
        if (found := self._index.digest()) != digest:
            raise PoolError(f"pool {self.name} was sealed with digest {digest}, but its content has {found}")


def entry_of(trajectory: Trajectory, record: bytes) -> NewRecord:
    """Return what the store takes of a trajectory and its record. Raises ``RecordRefused`` for a name that is too long."""
    provenance, verdict = trajectory.provenance, trajectory.verdict
    policy, verifier = (
        f"{provenance.policy_digest}@{provenance.policy_version}",
        f"{verdict.verifier}@{verdict.version}",
    )
    if (longest := max(len(policy), len(verifier))) > LONGEST_LABEL:
        raise RecordRefused(f"its policy or verifier has a name of {longest} characters; at most {LONGEST_LABEL}")
    # A line break parts the two when they are counted: see ``stats``.
    label = "\n".join(part.replace("\n", " ") for part in (policy, verifier))
    return NewRecord(trajectory.prompt_id, bytes.fromhex(trajectory.content_id), label, record)


def _listed(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the names with most records that fit a reply, in ascending order, and the sum of the others."""
    listed: dict[str, int] = {}
    others, room = 0, _LISTED_BYTES
    for name, held in sorted(counts.items(), key=lambda item: -item[1]):
        room -= len(json.dumps({name: held}))
        if room >= 0 and held:
            listed[name] = held
        else:
            others += held
    return dict(sorted(listed.items())) | ({OTHERS: others} if others else {})


def _check_options(options: PoolOptions, tokenizer_digest: str | None) -> None:
    if tokenizer_digest is None and not options.read_only:
        raise ConfigError("a pool that is written to needs tokenizer_digest; only read_only goes without")
    minimum, cap = options.minimum, options.cap
    if minimum is not None and (minimum < 1 or (cap is not None and cap < minimum)):
        raise ConfigError(f"minimum = {minimum}, cap = {cap}: wanted 1 <= minimum <= cap")
    if cap is not None and cap < 1:
        raise ConfigError(f"cap = {cap}: wanted at least 1")
    # Redis' scripts compare it as a double, which is exact up to 2^53.
    if options.writer_epoch is not None and not 0 <= options.writer_epoch < 1 << 53:
        raise ConfigError(f"writer_epoch = {options.writer_epoch} is not within 0 to 2^53")


def _opened(store: Store, tokenizer_digest: str | None, options: PoolOptions) -> Meta:
    """The pool's own settings, the pool being made where there is none."""
    meta = store.meta()
    if meta is None and not options.read_only and tokenizer_digest is not None:
        cap = options.cap or DEFAULT_CAP
        minimum = options.minimum or min(DEFAULT_MINIMUM, cap)
        store.create(Meta(tokenizer_digest, cap, None, minimum=minimum))
        meta = store.meta()
    if meta is None and options.may_be_missing:
        return Meta("", options.cap or DEFAULT_CAP, None)
    if meta is None:
        raise PoolError(
            f"there is no pool {store.name} in this Redis; pools found: {', '.join(store.names()) or 'none'}"
        )
    if tokenizer_digest is not None and meta.tokenizer_digest != tokenizer_digest:
        raise PoolError(
            f"pool {store.name} holds token ids of tokenizer {meta.tokenizer_digest}; this run's is {tokenizer_digest}. "
            "Use another pool name, or collect again with this model"
        )
    if options.cap is not None and options.cap != meta.cap:
        raise PoolError(f"pool {store.name} was made with at most {meta.cap} trajectories a prompt, not {options.cap}")
    if meta.vocabulary is None and options.vocabulary is not None and not options.read_only:
        store.set_vocabulary(options.vocabulary)
    return meta
