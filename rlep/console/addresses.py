"""How browsers may reach a console: the hosts and origins that it answers, and its certificate."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError
from rlep.services.pool.rpc.access import is_loopback, split_address

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the certificate chain and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a request's Host and Origin may be."""

    names: frozenset[str] = LOCAL_NAMES
    """Hosts of the console itself, with any port: ``ssh -L`` takes another one."""
    origins: frozenset[str] = frozenset()
    """``https://HOST[:PORT]`` beside those: a proxy's, or other names of this machine."""
    tls: Tls | None = None

    @property
    def scheme(self) -> str:
        """What the console itself speaks."""
        return "http" if self.tls is None else "https"

    def answers(self, host: str) -> bool:
        """Whether it is the console that a request's Host names."""
        return name_of(f"http://{host}") in self.names or f"https://{host.lower()}" in self.origins

    def trusts(self, origin: str, host: str) -> bool:
        """Whether a page of ``origin`` is one of the console's, when it asks for ``host``."""
        own = origin == f"{self.scheme}://{host}" and name_of(origin) in self.names
        return own or origin in self.origins


def addresses_of(
    listen: str, certificate: Path | None = None, key: Path | None = None, origins: Sequence[str] = ()
) -> Addresses:
    """The options of a command as one value. Raises ``ConfigError`` where others could read what a browser sends."""
    host, _ = split_address(listen)
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs --tls-cert and --tls-key together")
    tls = Tls(certificate, key) if certificate is not None and key is not None else None
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"--listen {listen} can be reached from other machines: it needs TLS (--tls-cert, --tls-key); without it listen "
            "on 127.0.0.1 and use ssh -L, or a proxy with TLS on this machine and --origin"
        )
    if tls is not None:
        _check(tls)
    if _everywhere(host):
        if not origins:
            raise ConfigError(f"--listen {listen} names no host: add --origin https://HOST:PORT, as browsers have it")
        return Addresses(LOCAL_NAMES, frozenset(map(_origin, origins)), tls)
    return Addresses(LOCAL_NAMES | {host.lower()}, frozenset(map(_origin, origins)), tls)


def name_of(address: str) -> str | None:
    """The host of ``scheme://host[:port]`` without more; None for anything else."""
    try:
        parts = urlsplit(address)
        return parts.hostname if parts.netloc and parts.username is None and not parts.path else None
    except ValueError:
        return None


def _origin(text: str) -> str:
    """An origin as browsers send it: in lower case, without the usual port."""
    address = text.lower().removesuffix("/")
    if not address.startswith("https://") or not name_of(address) or set(address) & set("?#*, "):
        raise ConfigError(f"--origin {text!r:.80} is not of the form https://HOST or https://HOST:PORT")
    return address.removesuffix(":443")


def _everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _check(tls: Tls) -> None:
    """Raise ``ConfigError`` where a server could not use the files."""
    for path in (tls.certificate, tls.key):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"TLS file {path} cannot be read: {error.strerror}") from None
    try:  # with a passphrase, since OpenSSL would ask the terminal for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert {tls.certificate} and --tls-key {tls.key} are no certificate and its key without passphrase: {error}"
        ) from None
