"""Conditions on a Redis before a pool trusts it with records: each check says what is wrong and how to put it right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from rlep.core.errors import PoolError
from rlep.services.pool.storage.connection import Client, RetryingRedis

OLDEST = (6, 2)
"""Oldest server whose commands suffice."""
HEADROOM = 0.95
"""Share of maxmemory from which on nobody even begins to add."""

Info = Mapping[str, Any]


def check_server(link: RetryingRedis, *, allow_volatile: bool = False, read_only: bool = False) -> None:
    """Refuse a Redis that is too old, that drops records, or that forgets them: ``PoolError`` with the remedy.

    ``allow_volatile`` accepts one without append-only file. A reader accepts what only a writer needs.
    """
    info = _info(link)
    if not read_only and _is_replica(info):
        link.reconnect()
        info = _info(link)
    _check_version(info)
    _check_eviction(info, link)
    if not read_only:
        _check_role(info)
        if not allow_volatile:
            _check_persistence(info)


def check_room(link: RetryingRedis) -> None:
    """Refuse a Redis whose memory or disk has no room for records now: ``PoolError``. Readers and removals do not need it."""
    info = _info(link)
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > HEADROOM * limit:
        raise PoolError(
            f"Redis uses {used >> 20} of {limit >> 20} MiB: no room for new answers. Raise maxmemory or prune a pool"
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        raise PoolError("Redis cannot write its append-only file: free disk space where its data lies")


def memory_of(link: RetryingRedis) -> tuple[int, int]:
    """(bytes used, ``maxmemory`` or 0) of the server."""
    info = _info(link)
    return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))


def _info(link: RetryingRedis) -> Info:
    try:
        return link.call("checking Redis", lambda: _asked(link.client))
    except PoolError as error:
        if isinstance(error.__cause__, NoPermissionError):
            raise PoolError("this Redis user may not ask INFO: grant +info, or use another user") from None
        raise


def _asked(client: Client) -> Info:
    info: Info = client.info()
    if info.get("loading"):  # INFO replies meanwhile, with no append-only file
        raise BusyLoadingError("it is loading its data")
    return info


def _check_version(info: Info) -> None:
    text = str(info.get("redis_version", ""))
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if not numbers or tuple(map(int, numbers.groups())) < OLDEST:
        raise PoolError(f"Redis has version {text or 'unknown'}; a pool needs 6.2 or newer, or any Valkey")


def _check_eviction(info: Info, link: RetryingRedis) -> None:
    policy = info.get("maxmemory_policy") or _configured(link, "maxmemory-policy")
    if policy != "noeviction":
        raise PoolError(
            f"Redis drops keys when its memory is full (maxmemory-policy {policy}), so answers would vanish silently: "
            "set maxmemory-policy noeviction"
        )


def _configured(link: RetryingRedis, name: str) -> str:
    try:
        return str(link.client.config_get(name).get(name, "unknown"))
    except ResponseError:
        return "unknown"


def _is_replica(info: Info) -> bool:
    return info.get("role") not in ("master", None)


def _check_role(info: Info) -> None:
    if _is_replica(info):
        raise PoolError(f"Redis is a {info['role']}, which takes no writes: give the primary's address")


def _check_persistence(info: Info) -> None:
    if not info.get("aof_enabled"):
        raise PoolError(
            "Redis keeps no append-only file, so a crash would lose acknowledged answers: set appendonly yes and "
            "appendfsync everysec"
        )
