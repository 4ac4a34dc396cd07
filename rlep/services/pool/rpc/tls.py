"""Certificates of a pool server and of its clients, from PEM files."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rlep.core.errors import ConfigError

_PROBE_S = 2.0
"""Longest wait for each answer of a server that may speak TLS."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a server."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Only clients with a certificate of this authority are let in."""

    def credentials(self) -> Any:
        """Return the credentials that gRPC takes. Raises ``ConfigError`` where a file cannot be read."""
        pair = (_read(self.key), _read(self.certificate))
        authority = _read(self.client_ca) if self.client_ca else None
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client."""

    ca: Path | None = None
    """Authority that the server's certificate is checked against; None: the public ones that gRPC brings along."""
    certificate: Path | None = None
    """The client's own, where the server asks for one (mutual TLS), and its key."""
    key: Path | None = None

    def credentials(self) -> Any:
        """Return the credentials that gRPC takes. Raises ``ConfigError`` where a file cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a client's certificate and its key belong together: give both or neither")
        return grpc.ssl_channel_credentials(
            *(_read(path) if path else None for path in (self.ca, self.key, self.certificate))
        )


def speaks_tls(host: str, port: int) -> bool:
    """Tell whether a server answers a TLS handshake; nothing else is sent. Its certificate is not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), _PROBE_S) as link, context.wrap_socket(link):
            return True
    except OSError:  # nor is an SSLError more than that
        return False


def _read(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS file {path} cannot be read: {error.strerror}") from None
