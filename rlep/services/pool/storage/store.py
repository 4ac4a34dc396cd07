"""Every Redis key of a pool, and the commands on them. Nothing above this file knows a key; nothing here knows a field.

For a pool ``N``::

    rlep:pools                set     names of the pools of this Redis
    rlep:{N}:meta             hash    format, buckets (1), tokenizer, cap, minimum, vocabulary (once stated), digest (when sealed)
    rlep:{N}:lease            string  who alone may write it, if anybody; it ends by itself
    rlep:{N/0}:state          hash    generation and its mark, sealed, aside (if anything was ever quarantined),
                                      labels (last number given), epoch:<writer>
    rlep:{N/0}:index          set     ids of prompts that ever had a record or a quarantined one
    rlep:{N/0}:changes        list    the last 512 changes: generation, mark, ids of the prompts whose records changed
    rlep:{N/0}:labels         hash    label (policy and verifier version) -> number
    rlep:{N/0}:totals         hash    n:<number> records and b:<number> bytes of a label
    rlep:{N/0}:q:<prompt>     hash    content id -> label number u32, then the record
    rlep:{N/0}:x:<prompt>     hash    the same, quarantined
    rlep:{N/0}:reply:<nonce>  string  reply to a named insert or a thread's last, for an hour: a repeated call gets it again
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from rlep.core.errors import ConfigError, PoolError
from rlep.services.pool.storage.codec import POOL_NAME
from rlep.services.pool.storage.connection import Command, RetryingRedis

FORMAT = 2
"""Layout of the keys; a pool of another format is refused."""

_NAMES = "rlep:pools"
_LABEL_BYTES = 4
_PROMPTS_A_CALL = 1024

Wanted = Sequence[tuple[str, Sequence[bytes]]]
"""Content ids of some prompts' records."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Facts that are fixed when a pool is made, and its digest once it is sealed."""

    tokenizer_digest: str
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
    """A state of the pool's records."""

    number: int
    """Grows by 1 with every change; a server that lost unacknowledged changes in a crash may give one again."""
    mark: bytes
    """Chosen anew for every change."""


@dataclass(frozen=True, slots=True)
class Label:
    """The number of records, and of their bytes, that carry one label."""

    records: int
    bytes: int


def check_name(name: str) -> None:
    """Raise ``ConfigError`` for a name of a pool that is not 1 to 64 letters, digits or ``._-``."""
    if not POOL_NAME.fullmatch(name):
        raise ConfigError(f"pool name {name!r:.80} is not 1 to 64 letters, digits or ._- (first a letter or digit)")


class Store:
    """The keys of one pool."""

    def __init__(self, link: RetryingRedis, name: str) -> None:
        """Raises ``ConfigError`` for a name that is not 1 to 64 letters, digits or ``._-``."""
        check_name(name)
        self.name = name
        self._link = link
        self._calls = count()
        self._local = threading.local()

    def names(self) -> list[str]:
        """Names of all pools of this Redis."""
        return sorted(name.decode() for name in self._link.one("listing pools", "SMEMBERS", _NAMES))

    def meta(self) -> Meta | None:
        """Return what the pool was made with, or None where there is no such pool. Raises ``PoolError`` for another format."""
        fields = self._link.one(f"pool {self.name}: opening", "HGETALL", self._meta)
        if not fields:
            return None
        if int(fields[b"format"]) != FORMAT:
            raise PoolError(
                f"pool {self.name} has format {int(fields[b'format'])}; this rlep reads format {FORMAT}. Export it with the "
                "rlep that made it (rlep pool export), and import the files into a new pool (rlep pool import)"
            )
        if int(fields[b"buckets"]) != 1:
            raise PoolError(
                f"pool {self.name} was made on a Redis Cluster, in {int(fields[b'buckets'])} parts; this rlep keeps a pool on "
                "one server. Export it with rlep 0.1 (rlep pool export), and import the files into a new pool (rlep pool import)"
            )
        digest, vocabulary, minimum = (fields.get(name) for name in (b"digest", b"vocabulary", b"minimum"))
        return Meta(
            fields[b"tokenizer"].decode(),
            int(fields[b"cap"]),
            digest.decode() if digest else None,
            int(vocabulary) if vocabulary else None,
            int(minimum) if minimum else None,
        )

    def create(self, meta: Meta) -> None:
        """Make the pool, unless another opener was quicker: each field is the first one's, set in one transaction.

        The name comes first: a maker killed in between leaves no pool, and the next one makes it.
        """
        fields = {"format": FORMAT, "tokenizer": meta.tokenizer_digest, "buckets": 1, "cap": meta.cap}
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
        """Insert atomically: one letter an entry (see ``add.lua``) and how many others the cap removed.

        A ``call`` of the same name, by whichever process, gets the first one's reply again within an hour.
        """
        if not entries:
            return [], 0
        prompts: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            prompts.setdefault(entry.prompt_id, []).append(position)
        # A named call is the same call from everywhere; others are told apart by their number within a thread.
        number = 0 if call else next(self._calls)
        kinds = ("state", "index", "changes", "totals", "labels", f"reply:{call or self._nonce()}", "q:", "x:")
        labels: dict[str, int] = {}
        records: list[str | int | bytes] = []
        for prompt_id, positions in prompts.items():
            records += (prompt_id, len(positions))
            for position in positions:
                entry = entries[position]
                records += (entry.content_id, labels.setdefault(entry.label, len(labels) + 1), entry.record)
        fence = "" if epoch is None else epoch
        arguments = [writer, fence, cap, number, _mark(), len(labels), *labels, *records]
        reply = self._link.script(f"pool {self.name}: adding", "add", [self._key(kind) for kind in kinds], arguments)
        _, removed, answers = reply.decode().split(":")
        # The script has sorted the records by prompt; whoever calls wants them in the order given.
        letters = [""] * len(entries)
        order = [position for positions in prompts.values() for position in positions]
        for position, letter in zip(order, answers, strict=True):
            letters[position] = letter
        return letters, int(removed)

    def fetch(self, wanted: Wanted, *, quarantined: bool = False) -> list[bytes | None]:
        """Records, or quarantined ones, of the given content ids of each prompt, in this order; None where one was removed."""
        key = self._quarantine if quarantined else self._records
        commands = [("HMGET", key(prompt_id), *ids) for prompt_id, ids in wanted if ids]
        answers = self._link.many(f"pool {self.name}: reading", commands)
        return [value[_LABEL_BYTES:] if value else None for answer in answers for value in answer]

    def remove(self, prompt_id: str, ids: Sequence[bytes], *, quarantine: bool) -> int:
        """Take records out, or aside; how many there were."""
        keys = [self._key(kind) for kind in ("state", "changes", "totals")]
        keys += (self._records(prompt_id), self._quarantine(prompt_id))
        arguments = [prompt_id, "quarantine" if quarantine else "remove", _mark(), *ids]
        return int(self._link.script(f"pool {self.name}: removing", "remove", keys, arguments))

    def set_aside(self, entries: Sequence[NewRecord]) -> int:
        """Quarantine records that the pool does not hold; how many were not quarantined before."""
        unlabelled, doing = bytes(_LABEL_BYTES), f"pool {self.name}: quarantining"
        if not entries:
            return 0
        # The index first: a prompt without records does no harm, a record of a prompt that no index has is lost to every scan.
        first: list[Command] = [
            ("HSET", self._key("state"), "aside", 1),
            ("SADD", self._key("index"), *{entry.prompt_id for entry in entries}),
        ]
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
        """Refuse this writer's older incarnations from now on."""
        doing = f"pool {self.name}: opening for writer {writer} at epoch {epoch}"
        self._link.script(doing, "fence", [self._key("state")], [writer, epoch])

    def newest_epoch(self, writer: str) -> int:
        """Of this writer's incarnations so far; 0 where there was none, or no pool."""
        return int(self._one("looking for its writer's epoch", "HGET", "state", f"epoch:{writer}") or 0)

    def lease(self, holder: str, seconds: float) -> tuple[str, float] | None:
        """Take the lease, renew it, or with 0 seconds give it back. Another's: who has it, and for how many more seconds."""
        arguments = [holder, int(1000 * seconds)]
        reply = self._link.script(
            f"pool {self.name}: taking its lease", "lease", [f"rlep:{{{self.name}}}:lease"], arguments
        )
        return (reply[0].decode(), reply[1] / 1000) if reply else None

    def seal(self) -> None:
        """Close the pool for inserts and removals."""
        self._link.write(f"pool {self.name}: sealing", [("HSET", self._key("state"), "sealed", 1)])

    def set_digest(self, digest: str) -> None:
        """Record the digest of a sealed pool."""
        self._link.write(f"pool {self.name}: sealing", [("HSET", self._meta, "digest", digest)])

    def generation(self) -> Generation:
        """Unequal whenever the pool's records have changed."""
        number, mark = self._one("looking for changes", "HMGET", "state", "generation", "mark")
        return Generation(int(number or 0), mark or b"")

    def changed(self, since: Generation, now: Generation) -> list[str] | None:
        """Prompts whose records changed between two generations, at least; None where that is not known."""
        kept = now.number - since.number + 1
        if kept < 1:
            return None
        entries = [entry.split(b" ") for entry in self._one("reading changes", "LRANGE", "changes", -kept - 8, -1)]
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
        """Count the prompts that ever had a record, quarantined ones included."""
        return int(self._one("counting", "SCARD", "index"))

    def quarantined(self) -> int:
        """Count the quarantined records."""
        # In most pools nothing ever was: then no prompt has to be asked.
        if not self._one("counting", "HEXISTS", "state", "aside"):
            return 0
        commands = [("HLEN", self._quarantine(prompt_id)) for prompt_id in self.all_prompts()]
        return sum(map(int, self._link.many(f"pool {self.name}: counting", commands)))

    def all_prompts(self) -> list[str]:
        """Every prompt that ever had a record, quarantined ones included, ascending."""
        return sorted(prompt_id.decode() for prompt_id in self._one("reading the index", "SMEMBERS", "index"))

    def labels(self) -> dict[str, Label]:
        """Records and bytes by label."""
        totals = self._one("counting", "HGETALL", "totals")
        return {
            name.decode(): Label(*(int(totals.get(kind + number, 0)) for kind in (b"n:", b"b:")))
            for name, number in self._one("counting", "HGETALL", "labels").items()
        }

    def _one(self, doing: str, command: str, kind: str, *arguments: str | int) -> Any:
        """The reply to one reading command on one of the pool's keys."""
        return self._link.one(f"pool {self.name}: {doing}", command, self._key(kind), *arguments)

    @property
    def _meta(self) -> str:
        return f"rlep:{{{self.name}}}:meta"

    def _key(self, kind: str) -> str:
        return f"rlep:{{{self.name}/0}}:{kind}"

    def _records(self, prompt_id: str) -> str:
        return self._key(f"q:{prompt_id}")

    def _quarantine(self, prompt_id: str) -> str:
        return self._key(f"x:{prompt_id}")

    def _nonce(self) -> str:
        """Names this thread's inserts: it waits for each reply before the next call, so one kept reply is enough."""
        if not hasattr(self._local, "nonce"):
            self._local.nonce = secrets.token_hex(8)
        return str(self._local.nonce)


def _mark() -> str:
    """Tells a change from another of the same number."""
    return secrets.token_hex(4)
