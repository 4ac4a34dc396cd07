"""Replies of a pool server that may be anybody's: checked against what was asked, and bounded, before a caller gets them.

Each reader raises ``PoolError``, or an error of the library that takes the reply apart; ``PoolClient`` names the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rlep.core.errors import PoolError
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.wire import MESSAGE_BYTES, PAGE_BYTES, RECORDS_A_PAGE, named_ids
from rlep.services.pool.storage.codec import POOL_NAME, PROMPT_ID
from rlep.services.pool.storage.scan import Held

MAX_POOLS, MAX_PROMPTS = 1 << 16, 1 << 23
"""Most pools of a server, and most questions of a pool, that a listing holds in memory."""
_DIGEST = re.compile("[0-9a-f]{32}")


def names_in(reply: pb.ListReply, after: str, *, pools: bool = False) -> list[str]:
    """A page of names of pools, or ids of prompts: ascending behind ``after``; another page begins where this one ends."""
    names, pattern = list(reply.names), POOL_NAME if pools else PROMPT_ID
    _check_ascending(names, after, pattern)
    if reply.next and (not names or reply.next != names[-1]):
        raise PoolError(f"a page of names ends with {names[-1:]!r:.80}, and the next begins behind {reply.next!r:.80}")
    return names


def contents_in(reply: pb.ContentsReply, asked: Sequence[str], after: str) -> list[tuple[str, list[bytes]]]:
    """Content ids of the prompts asked for, or where none was, of a page of all behind ``after``."""
    names = list(reply.prompt_ids)
    if asked and (names != list(asked) or reply.next):
        raise PoolError(f"a listing of {len(asked)} prompts arrived with {len(names)} others")
    if not asked:
        names_in(pb.ListReply(names=names, next=reply.next), after)
    return named_ids(names, reply.counts, reply.ids)


def page_in(frames: Iterable[pb.ExportFrame], request: pb.ExportRequest) -> tuple[list[Held], str]:
    """A page of records, ascending behind ``request.after``, and where the next one begins."""
    page: list[Held] = []
    following: str | None = None
    size, asked = 0, frozenset(request.prompt_ids)
    for frame in _bounded(frames, RECORDS_A_PAGE + 1):
        size += sum(len(record.record) for record in frame.records)
        page += (Held(one.prompt_id, one.content_id, one.record, one.quarantined) for one in frame.records)
        if len(page) > (request.limit or RECORDS_A_PAGE) or size > PAGE_BYTES + MESSAGE_BYTES:
            raise PoolError(f"a page of an export has more than {len(page) - 1} records or {size} bytes")
        following = frame.next
    if following is None:
        raise PoolError("a page of an export has no frame")
    first, _, within = request.after.partition("/")
    places = [(first, within or "z"), *((held.prompt_id, held.place.partition("/")[2]) for held in page)]
    if any(before >= behind for before, behind in pairwise(places)):
        raise PoolError("a page of an export does not ascend")
    wrong = next((one for one in page if not PROMPT_ID.fullmatch(one.prompt_id) or len(one.content_id) != 16), None)
    if wrong or (asked and not all(held.prompt_id in asked for held in page)):
        raise PoolError("a page of an export has records that were not asked for")
    if following and (not page or following != page[-1].place):
        raise PoolError(f"a page of an export goes on at {following!r:.80}, which is not its end")
    return page, following


def ids_in(reply: pb.ListTrajectoriesReply) -> list[str]:
    """Content ids of a prompt."""
    if len(reply.ids) % 16:
        raise PoolError(f"content ids arrived in {len(reply.ids)} bytes, not in 16 each")
    ids = reply.ids.hex()
    return [ids[at : at + 32] for at in range(0, len(ids), 32)]


def digest_in(reply: pb.DigestReply) -> str:
    """The digest of a pool."""
    if not _DIGEST.fullmatch(reply.digest):
        raise PoolError(f"the digest {reply.digest!r:.60} is not 32 hex digits")
    return str(reply.digest)


def _check_ascending(names: Sequence[str], after: str, pattern: re.Pattern[str]) -> None:
    if wrong := next((name for name in names if not pattern.fullmatch(name)), None):
        raise PoolError(f"a listing has the name {wrong!r:.80}")
    if any(before >= behind for before, behind in pairwise([after, *names])):
        raise PoolError("a listing does not ascend")


def _bounded(frames: Iterable[pb.ExportFrame], most: int) -> Iterator[pb.ExportFrame]:
    """The frames of a stream that ends. Raises ``PoolError`` where there are more."""
    for number, frame in enumerate(frames):
        if number == most:
            raise PoolError(f"a stream has more than {most} frames")
        yield frame
