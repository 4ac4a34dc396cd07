"""Every Redis key of a pool, and the commands on them. Nothing above this file knows a key; nothing here knows a field.

For a pool ``N`` with bucket ``B`` (hash-tagged: a script touches one bucket, which is one slot of a Redis Cluster; one server
needs no more than one bucket)::

    rlep:pools                set     names of the pools of this Redis
    rlep:{N}:meta             hash    format, buckets, tokenizer, cap, minimum, vocabulary (once stated), digest (when sealed)
    rlep:{N}:lease            string  who alone may write it, if anybody; it ends by itself
    rlep:{N/B}:state          hash    generation and its mark, sealed, aside (if anything was ever quarantined),
                                      labels (last number given), epoch:<writer>
    rlep:{N/B}:index          set     ids of prompts that ever had a record or a quarantined one
    rlep:{N/B}:changes        list    the last 512 changes: generation, mark, ids of the prompts whose records changed
    rlep:{N/B}:labels         hash    label (policy and verifier version) -> number
    rlep:{N/B}:totals         hash    n:<number> records and b:<number> bytes of a label
    rlep:{N/B}:q:<prompt>     hash    content id -> label number u32, then the record
    rlep:{N/B}:x:<prompt>     hash    the same, quarantined
    rlep:{N/B}:reply:<nonce>  string  reply to a named insert or a thread's last, for an hour: a repeated call gets it again
"""

from __future__ import annotations

import re
import secrets
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from rlep.core.errors import ConfigError, PoolError
from rlep.services.pool.storage.connection import Command, RetryingRedis

FORMAT = 2
"""Layout of the keys; a pool of another format is refused."""

_NAMES = "rlep:pools"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL_BYTES = 4
_PROMPTS_A_CALL = 1024

Wanted = Sequence[tuple[str, Sequence[bytes]]]
"""Content ids of some prompts' records."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What is fixed when a pool is made, and its digest once it is sealed."""

    tokenizer_digest: str
    buckets: int
    cap: int
    digest: str | None
    vocabulary: int | None = None
    """Token ids are below this; None until a writer states it."""
    minimum: int | None = None
    """Trajectories that a prompt needs before any is drawn; None in a pool made before this was recorded."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that is to be inserted."""

    prompt_id: str
    content_id: bytes
    label: str
    record: bytes


class Generation(NamedTuple):
    """A state of a bucket's records."""

    number: int
    """Grows by 1 with every change; a server that lost unacknowledged changes in a crash may give one again."""
    mark: bytes
    """Chosen anew for every change."""


@dataclass(frozen=True, slots=True)
class Label:
    """How many records, and how many bytes of them, carry one label."""

    records: int
    bytes: int


class Store:
    """The keys of one pool."""

    def __init__(self, link: RetryingRedis, name: str) -> None:
        """Raises ``ConfigError`` for a name that is not 1 to 64 letters, digits or ``._-``."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"pool name {name!r:.80} is not 1 to 64 letters, digits or ._- (first a letter or digit)")
        self.name = name
        self.buckets = 0
        self._link = link
        self._calls = count()
        self._local = threading.local()

    def names(self) -> list[str]:
        """Names of all pools of this Redis."""
        return sorted(name.decode() for name in self._link.one("listing pools", "SMEMBERS", _NAMES))

    def meta(self) -> Meta | None:
        """What the pool was made with, or None where there is no such pool. Raises ``PoolError`` for another format."""
        answer = self._link.one(f"pool {self.name}: opening", "HGETALL", self._meta)
        fields = dict(zip(answer[::2], answer[1::2], strict=True)) if isinstance(answer, list) else answer
        if not fields:
            return None
        if int(fields[b"format"]) != FORMAT:
            raise PoolError(
                f"pool {self.name} has format {int(fields[b'format'])}; this rlep reads format {FORMAT}. Export it with the "
                "rlep that made it (rlep pool export), and import the files into a new pool (rlep pool import)"
            )
        self.buckets = int(fields[b"buckets"])
        digest, vocabulary, minimum = (fields.get(name) for name in (b"digest", b"vocabulary", b"minimum"))
        return Meta(
            fields[b"tokenizer"].decode(),
            self.buckets,
            int(fields[b"cap"]),
            digest.decode() if digest else None,
            int(vocabulary) if vocabulary else None,
            int(minimum) if minimum else None,
        )

    def create(self, meta: Meta) -> None:
        """Make the pool, unless another opener was quicker: each field is the first one's, set in one transaction.

        The name comes first: a maker killed in between leaves no pool, and the next one makes it.
        """
        fields = {"format": FORMAT, "tokenizer": meta.tokenizer_digest, "buckets": meta.buckets, "cap": meta.cap}
        fields |= {} if meta.minimum is None else {"minimum": meta.minimum}
        commands = [("HSETNX", self._meta, field, value) for field, value in fields.items()]
        self._link.write(f"pool {self.name}: making", [("SADD", _NAMES, self.name)])
        self._link.write(f"pool {self.name}: making", commands, atomic=True)

    def set_vocabulary(self, vocabulary: int) -> None:
        """Record the vocabulary, unless another opener was quicker."""
        self._link.write(f"pool {self.name}: opening", [("HSETNX", self._meta, "vocabulary", vocabulary)])

    def insert(
        self, entries: Sequence[NewRecord], *, cap: int, writer: str, epoch: int | None, call: str | None = None
    ) -> tuple[list[str], int]:
        """Insert atomically per bucket: one letter an entry (see ``add.lua``) and how many others the cap removed.

        A ``call`` of the same name, by whichever process, gets the first one's reply again within an hour.
        """
        by_bucket: dict[int, dict[str, list[int]]] = {}
        for position, entry in enumerate(entries):
            prompts = by_bucket.setdefault(self._bucket(entry.prompt_id), {})
            prompts.setdefault(entry.prompt_id, []).append(position)
        number, calls = (0 if call else next(self._calls)), []
        for bucket, prompts in by_bucket.items():
            reply = f"reply:{call or self._nonce()}"
            kinds = ("state", "index", "changes", "totals", "labels", reply, "q:", "x:")
            keys = [self._key(bucket, kind) for kind in kinds]
            labels: dict[str, int] = {}
            records: list[str | int | bytes] = []
            for prompt_id, positions in prompts.items():
                records += (prompt_id, len(positions))
                for position in positions:
                    entry = entries[position]
                    records += (entry.content_id, labels.setdefault(entry.label, len(labels) + 1), entry.record)
            fence = "" if epoch is None else epoch
            calls.append((keys, [writer, fence, cap, number, _mark(), len(labels), *labels, *records]))
        replies = self._link.scripts(f"pool {self.name}: adding", "add", calls)
        letters, evicted = [""] * len(entries), 0
        for prompts, reply in zip(by_bucket.values(), replies, strict=True):
            _, removed, answers = reply.decode().split(":")
            evicted += int(removed)
            order = [position for positions in prompts.values() for position in positions]
            for position, letter in zip(order, answers, strict=True):
                letters[position] = letter
        return letters, evicted

    def fetch(self, wanted: Wanted, *, quarantined: bool = False) -> list[bytes | None]:
        """Records, or quarantined ones, of the given content ids of each prompt, in this order; None where one was removed."""
        key = self._quarantine if quarantined else self._records
        commands = [("HMGET", key(prompt_id), *ids) for prompt_id, ids in wanted if ids]
        answers = self._link.many(f"pool {self.name}: reading", commands)
        return [value[_LABEL_BYTES:] if value else None for answer in answers for value in answer]

    def remove(self, prompt_id: str, ids: Sequence[bytes], *, quarantine: bool) -> int:
        """Take records out, or aside; how many there were."""
        bucket = self._bucket(prompt_id)
        keys = [self._key(bucket, kind) for kind in ("state", "changes", "totals")]
        keys += (self._records(prompt_id), self._quarantine(prompt_id))
        call = (keys, [prompt_id, "quarantine" if quarantine else "remove", _mark(), *ids])
        return int(self._link.scripts(f"pool {self.name}: removing", "remove", [call])[0])

    def set_aside(self, entries: Sequence[NewRecord]) -> int:
        """Quarantine records that the pool does not hold; how many were not quarantined before."""
        unlabelled, doing = bytes(_LABEL_BYTES), f"pool {self.name}: quarantining"
        prompts = {entry.prompt_id: self._bucket(entry.prompt_id) for entry in entries}
        first: list[Command] = [("HSET", self._key(bucket, "state"), "aside", 1) for bucket in set(prompts.values())]
        first += [("SADD", self._key(bucket, "index"), prompt_id) for prompt_id, bucket in prompts.items()]
        commands = [
            ("HSETNX", self._quarantine(entry.prompt_id), entry.content_id, unlabelled + entry.record)
            for entry in entries
        ]
        self._link.write(doing, first)
        return sum(map(int, self._link.write(doing, commands)))

    def forget(self, prompt_id: str, ids: Sequence[bytes]) -> int:
        """Drop quarantined records for good, so that they may come again; how many there were."""
        command = ("HDEL", self._quarantine(prompt_id), *ids)
        return int(self._link.write(f"pool {self.name}: forgetting", [command])[0])

    def fence(self, writer: str, epoch: int) -> None:
        """Refuse this writer's older incarnations from now on, in every bucket."""
        calls = [([self._key(bucket, "state")], [writer, epoch]) for bucket in range(self.buckets)]
        self._link.scripts(f"pool {self.name}: opening for writer {writer} at epoch {epoch}", "fence", calls)

    def newest_epoch(self, writer: str) -> int:
        """Of this writer's incarnations so far; 0 where there was none, or no pool."""
        doing = "looking for its writer's epoch"
        found = self._everywhere(doing, "HGET", "state", f"epoch:{writer}") if self.meta() else []
        return max((int(epoch or 0) for epoch in found), default=0)

    def lease(self, holder: str, seconds: float) -> tuple[str, float] | None:
        """Take the lease, renew it, or with 0 seconds give it back. Another's: who has it, and for how many more seconds."""
        calls = [([f"rlep:{{{self.name}}}:lease"], [holder, int(1000 * seconds)])]
        (reply,) = self._link.scripts(f"pool {self.name}: taking its lease", "lease", calls)
        return (reply[0].decode(), reply[1] / 1000) if reply else None

    def seal(self) -> None:
        """Close every bucket for inserts and removals."""
        commands = [("HSET", self._key(bucket, "state"), "sealed", 1) for bucket in range(self.buckets)]
        self._link.write(f"pool {self.name}: sealing", commands)

    def set_digest(self, digest: str) -> None:
        """Record the digest of a sealed pool."""
        self._link.write(f"pool {self.name}: sealing", [("HSET", self._meta, "digest", digest)])

    def generations(self) -> list[Generation]:
        """Of each bucket; unequal whenever its records have changed."""
        answers = self._everywhere("looking for changes", "HMGET", "state", "generation", "mark")
        return [Generation(int(number or 0), mark or b"") for number, mark in answers]

    def changed(self, bucket: int, since: Generation, now: Generation) -> list[str] | None:
        """Prompts of a bucket whose records changed between two generations, at least; None where that is not known."""
        kept = now.number - since.number + 1
        if kept < 1:
            return None
        log = self._link.one(
            f"pool {self.name}: reading changes", "LRANGE", self._key(bucket, "changes"), -kept - 8, -1
        )
        entries = [entry.split(b" ") for entry in log]
        starts = [at for at, entry in enumerate(entries) if entry[:2] == [b"%d" % since.number, since.mark]]
        if not starts:
            return None
        return list({prompt_id.decode() for entry in entries[starts[0] + 1 :] for prompt_id in entry[2:]})

    def content_ids(self, prompt_ids: Sequence[str], *, quarantined: bool = False) -> list[list[bytes]]:
        """Per prompt, the content ids of its records, or of its quarantined ones, in ascending order."""
        key, found = self._quarantine if quarantined else self._records, list[list[bytes]]()
        for start in range(0, len(prompt_ids), _PROMPTS_A_CALL):
            commands = [("HKEYS", key(prompt_id)) for prompt_id in prompt_ids[start : start + _PROMPTS_A_CALL]]
            found += (sorted(ids) for ids in self._link.many(f"pool {self.name}: reading the index", commands))
        return found

    def questions(self) -> int:
        """How many prompts ever had a record, quarantined ones included."""
        return sum(map(int, self._everywhere("counting", "SCARD", "index")))

    def some_prompts(self, about: int) -> list[str]:
        """Prompts that ever had a record, ascending: all, or about so many, which come first by the server's own hash."""
        share = -(-2 * about // self.buckets)  # of its table's places, which are half full at least
        answers = self._everywhere("looking at some prompts", "SSCAN", "index", 0, "COUNT", share)
        return sorted({prompt_id.decode() for _, prompt_ids in answers for prompt_id in prompt_ids})

    def counts(self, prompt_ids: Sequence[str], *, quarantined: bool = False) -> list[int]:
        """Per prompt, how many records, or quarantined ones, it has."""
        key = self._quarantine if quarantined else self._records
        commands = [("HLEN", key(prompt_id)) for prompt_id in prompt_ids]
        return list(map(int, self._link.many(f"pool {self.name}: counting", commands)))

    def all_prompts(self) -> list[str]:
        """Every prompt that ever had a record, quarantined ones included, ascending."""
        answers = self._everywhere("reading the index", "SMEMBERS", "index")
        return sorted(prompt_id.decode() for prompt_ids in answers for prompt_id in prompt_ids)

    def labels(self) -> dict[str, Label]:
        """Records and bytes by label."""
        names = self._everywhere("counting", "HGETALL", "labels")
        totals = self._everywhere("counting", "HGETALL", "totals")
        sums: dict[str, Label] = {}
        for name_answer, total_answer in zip(names, totals, strict=True):
            total = _pairs(total_answer)
            for name, number in _pairs(name_answer).items():
                before = sums.get(name.decode(), Label(0, 0))
                records, size = (int(total.get(kind + number, 0)) for kind in (b"n:", b"b:"))
                sums[name.decode()] = Label(before.records + records, before.bytes + size)
        return sums

    def _everywhere(self, doing: str, command: str, kind: str, *arguments: str | int) -> list[Any]:
        """One reading command on the same kind of key of every bucket."""
        commands = [(command, self._key(bucket, kind), *arguments) for bucket in range(self.buckets)]
        return self._link.many(f"pool {self.name}: {doing}", commands)

    @property
    def _meta(self) -> str:
        return f"rlep:{{{self.name}}}:meta"

    def _bucket(self, prompt_id: str) -> int:
        return zlib.crc32(prompt_id.encode()) % self.buckets if self.buckets > 1 else 0

    def _key(self, bucket: int, kind: str) -> str:
        return f"rlep:{{{self.name}/{bucket}}}:{kind}"

    def _records(self, prompt_id: str) -> str:
        return f"rlep:{{{self.name}/{self._bucket(prompt_id)}}}:q:{prompt_id}"

    def _quarantine(self, prompt_id: str) -> str:
        return self._key(self._bucket(prompt_id), f"x:{prompt_id}")

    def _nonce(self) -> str:
        """Names this thread's inserts: it waits for each reply before the next call, so one kept reply is enough."""
        if not hasattr(self._local, "nonce"):
            self._local.nonce = secrets.token_hex(8)
        return str(self._local.nonce)


def _mark() -> str:
    """Tells a change from another of the same number."""
    return secrets.token_hex(4)


def _pairs(answer: Mapping[bytes, bytes] | Iterable[bytes]) -> dict[bytes, bytes]:
    """A hash as redis-py gives it: a mapping, or field, value, field, value."""
    if isinstance(answer, Mapping):
        return dict(answer)
    flat = list(answer)
    return dict(zip(flat[::2], flat[1::2], strict=True))
