"""Pool servers, certificates and raw stubs for the tests of the gRPC service."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.places import address_of
from rlep.services.pool.rpc.proto.pool_pb2_grpc import PoolStub
from rlep.services.pool.rpc.server import PoolServer, ServerOptions
from rlep.services.pool.storage.connection import connect
from rlep.services.pool.values import PoolPlace

Key = ec.EllipticCurvePrivateKey


@contextmanager
def serving(redis: EmbeddedRedis, **options: Any) -> Iterator[PoolServer]:
    """A server over a Redis, on a free port of loopback unless ``options`` say otherwise."""
    client = connect(redis.url, password_file=redis.password_file)
    try:
        with PoolServer(client, ServerOptions(**options)) as server:
            yield server
    finally:
        client.close()


def socket_in(redis: EmbeddedRedis) -> str:
    """Where whoever serves the directory of this Redis listens."""
    return address_of(PoolPlace(None, redis.directory, ""))


def token_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


@contextmanager
def stub(address: str) -> Iterator[PoolStub]:
    """The bare calls, for what ``PoolClient`` never sends."""
    limit = ("grpc.max_send_message_length", -1)
    with grpc.insecure_channel(address, [limit]) as channel:
        yield PoolStub(channel)


class Certificate(NamedTuple):
    """A certificate and its key, in memory and as files."""

    certificate: x509.Certificate
    key: Key
    certificate_file: Path
    key_file: Path


def make_certificate(directory: Path, name: str, authority: Certificate | None = None) -> Certificate:
    """A certificate for 127.0.0.1, signed by an authority or by itself (which makes it one)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(authority.key if authority else key, hashes.SHA256())
    )
    certificate_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificate(built, key, certificate_file, key_file)


@contextmanager
def reserved_address() -> Iterator[str]:
    """A loopback address for a server that comes and goes, which nobody else is given meanwhile.

    A port that is merely free may be taken between two servers: by another test, or as the own port of a client that
    tries to reach it. Bound without listening it goes to nobody who does not ask for it by its number.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"
