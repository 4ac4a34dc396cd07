"""Access to a pool server: who may call what."""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from rlep.core.errors import ConfigError

_log = logging.getLogger(__name__)


class Role(enum.IntEnum):
    """Rights that a token gives; each includes the ones before it."""

    NONE = 0
    READ = 1
    APPEND = 2
    """Also ``add``, which makes a pool that does not exist."""
    ADMIN = 3
    """Also ``remove`` and ``seal``."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of a token file."""

    role: Role
    pool: str | None
    """None: every pool."""
    digest: bytes
    """SHA-256 of the token: the server does not keep the token itself."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody with a token, or anybody where the server asks for none."""

    name: str
    """Names the caller in messages; holds nothing of the token."""
    grants: tuple[Grant, ...]

    def role(self, pool: str) -> Role:
        """Return the caller's right to a pool."""
        return max((grant.role for grant in self.grants if grant.pool in (None, pool)), default=Role.NONE)


class Tokens:
    """The tokens of one server."""

    def __init__(self, grants: tuple[Grant, ...]) -> None:
        self._grants = grants

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a token file, or make one with a single admin token where there is none.

        A line is ``TOKEN``, ``ROLE TOKEN`` or ``ROLE@POOL TOKEN`` with the role read, append or admin; without a role it is
        admin. A token may stand in several lines. Raises ``ConfigError`` where others than the owner can change the file;
        that others can read it is only warned of, since mounted secrets (Kubernetes) often are so.
        """
        try:
            _make_token_file(path)
            with path.open() as file:
                # Of the file that is read, whatever has its name by then.
                mode = os.fstat(file.fileno()).st_mode & 0o777
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token file {path} cannot be read: {error}") from None
        if mode & 0o022:
            raise ConfigError(f"token file {path} has mode {mode:o}: others can change it. chmod 600 {path}")
        if mode & 0o044:
            _log.warning("token file %s has mode %o: others can read it; chmod 600 %s", path, mode, path)
        grants = [_grant(path, number, line) for number, line in enumerate(lines, 1) if line.split("#", 1)[0].strip()]
        if not grants:
            raise ConfigError(f"token file {path} holds no token")
        return cls(tuple(grants))

    def caller(self, token: str) -> Caller | None:
        """Return the holder of this token, compared in constant time with every one; None where it is none of them."""
        digest = _digest(token)
        held = tuple(grant for grant in self._grants if hmac.compare_digest(grant.digest, digest))
        return Caller(f"token {digest.hex()[:8]}", held) if held else None


def _make_token_file(path: Path) -> None:
    try:
        # Of two servers that start at once one makes it, and both read that one.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def _grant(path: Path, number: int, line: str) -> Grant:
    """Parse one line; a message never repeats it, since it holds a secret."""
    words = line.split("#", 1)[0].split()
    named = re.fullmatch(r"(read|append|admin)(?:@([A-Za-z0-9][A-Za-z0-9._-]{0,63}))?", words[0])
    if len(words) == 1 and not named:
        return Grant(Role.ADMIN, None, _digest(words[0]))
    if len(words) != 2 or not named:
        raise ConfigError(f"token file {path}, line {number}: is not TOKEN, ROLE TOKEN or ROLE@POOL TOKEN")
    return Grant(Role[named[1].upper()], named[2], _digest(words[1]))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


ANYBODY = Grant(Role.ADMIN, None, b"")
"""Rights of everybody where a server on loopback asks for no token."""


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[host]:port`` taken apart. Raises ``ConfigError``."""
    parts = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+):(\d{1,5})", address)
    if not parts or int(parts[2]) > 65535:
        raise ConfigError(f"address {address!r:.80} is not HOST:PORT, e.g. 127.0.0.1:7171 or [::1]:7171")
    return parts[1].strip("[]"), int(parts[2])


def listen_address(text: str) -> str:
    """The address that ``--listen`` means: a port alone is one of 127.0.0.1. Raises ``ConfigError``."""
    address = f"127.0.0.1:{text}" if text.isdecimal() else text
    if not address.startswith("unix:"):
        split_address(address)
    return address


def is_local(address: str) -> bool:
    """Tell whether only this machine reaches an address, ``host:port`` or ``unix:PATH``. Raises ``ConfigError``."""
    return address.startswith("unix:/") or is_loopback(split_address(address)[0])


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine and nothing else can reach it. Raises ``ConfigError`` where it has no address."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host} has no address: {error}") from None
    # Behind % stands an interface (fe80::1%eth0), which is no part of the address.
    return all(ipaddress.ip_address(str(place).split("%")[0]).is_loopback for place in found)
