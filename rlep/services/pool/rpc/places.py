"""A pool's place: the address at which its server is, a client of it, and where nobody else does, the server itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError
from rlep.core.paths import private_directory
from rlep.services.pool.rpc.access import is_loopback
from rlep.services.pool.values import PoolPlace

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

SOCKET = "pool.sock"
"""In the directory of an embedded pool, and in the private one of a process that serves a Redis for itself."""


def on_server(url: str | None) -> bool:
    """Tell whether this is the address of a pool server."""
    return url is not None and urlsplit(url).scheme in ("grpc", "grpcs")


def private_socket(url: str | None) -> Path | None:
    """A new socket for the server of a Redis at ``url``, in a directory that only this user enters; None for other places."""
    if url is None or on_server(url):
        return None
    return private_directory("pool", deepest=len(f"/{SOCKET}")) / SOCKET


def address_of(place: PoolPlace) -> str:
    """The address of the place's server: ``host:port``, or ``unix:PATH`` of a socket that only this user reaches."""
    if place.url is not None and on_server(place.url):
        return urlsplit(place.url).netloc
    from rlep.services.pool.embedded.redis_process import socket_path  # redis is for those whose pool is here

    return f"unix:{place.socket or socket_path(place.directory.absolute(), SOCKET)}"


def client_options(place: PoolPlace) -> dict[str, Any]:
    """Pool, token and TLS of a client of this place.

    Raises ``ConfigError`` for its files, or a token that everybody could read.
    """
    url = urlsplit(place.url or "")
    token = None if place.token_file is None else _token(place.token_file)
    if token is not None and url.scheme == "grpc" and not is_loopback(url.hostname or ""):
        raise ConfigError(f"pool.url = {place.url} would carry the token of pool.token_file in the clear: use grpcs://")
    tls = (place.ca_file or True) if url.scheme == "grpcs" else None
    return {"pool": place.name, "token": token, "tls": tls}


def connected(place: PoolPlace, **options: Any) -> PoolClient:
    """A client of the server at ``place``; ``options``: others of ``PoolClient``. Raises like ``client_options``."""
    from rlep.services.pool.rpc.client import PoolClient  # gRPC is for those who use it

    return PoolClient(address_of(place), **client_options(place), **options)


@contextmanager
def hosted(place: PoolPlace, *, deadline: float = 30.0) -> Iterator[None]:
    """Have a server at the address of ``place`` meanwhile: of its Redis, or an embedded one over its directory.

    Several processes may host one directory: see ``EmbeddedRedis``. At ``grpc://`` the server is somebody else's.

    Args:
        place: a Redis needs ``socket``.
        deadline: seconds for one operation on Redis; an embedded one may be silent for 60 s at its start,
            and load for as long as it has data.

    Raises:
        ConfigError: the place or what serves it cannot be used.
        PoolError: with the reason why the server does not come up.
        DeadlineExceeded: it takes too long.
    """
    if on_server(place.url):
        yield
        return
    from rlep.services.pool.embedded.redis_process import EmbeddedRedis
    from rlep.services.pool.rpc.server import PoolServer, ServerOptions
    from rlep.services.pool.storage.connection import connect, until_deadline

    # Not strict: of a Redis that takes no writes now a reader still wants to read.
    options = ServerOptions(listen=address_of(place), pool=place.name, deadline=deadline, strict=False)

    @contextmanager
    def serving(url: str, password_file: Path | None = None) -> Iterator[None]:
        client = until_deadline(
            "connecting to Redis", lambda: connect(url, password_file=password_file), deadline=deadline
        )
        with closing(client), PoolServer(client, options):
            yield

    if place.url is not None:
        with serving(place.url, place.password_file):
            yield
    else:
        redis = EmbeddedRedis(place.directory, beside=lambda: serving(redis.url, redis.password_file))
        with redis:
            with connected(place, deadline=redis.deadline) as client:
                client.names()  # where another process owns the directory, its server
            yield


@contextmanager
def served(place: PoolPlace, *, deadline: float = 30.0, **options: Any) -> Iterator[PoolClient]:
    """A client of the pool at ``place``, which is hosted meanwhile; ``options``: others of ``PoolClient``. Raises like both."""
    place = replace(place, socket=private_socket(place.url))
    with hosted(place, deadline=deadline), connected(place, deadline=deadline, **options) as client:
        yield client


def _token(file: Path) -> str:
    """Read the one token that the file holds. Raises ``ConfigError``."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"pool.token_file = {file} cannot be read: {why}") from None
    if not token or len(token.split()) != 1:
        raise ConfigError(f"pool.token_file = {file} does not hold one token and nothing else")
    return token
