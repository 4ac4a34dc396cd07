"""The network between a client and a pool server: connections that fall silent, names that do not resolve yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, DeadlineExceeded
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc import client, server
from tests.services.pool.pool_servers import make_certificate, serving
from tests.services.pool.tcp_proxy import proxied


def test_a_connection_that_falls_silent_is_given_up_and_the_call_made_again(
    one_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = {"grpc.keepalive_time_ms": 200, "grpc.keepalive_timeout_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    monkeypatch.setattr(client, "_OPTIONS", tuple((dict(client._OPTIONS) | soon).items()))
    often = {"grpc.http2.min_ping_interval_without_data_ms": 100}
    monkeypatch.setattr(server, "_OPTIONS", tuple((dict(server._OPTIONS) | often).items()))
    with serving(one_redis) as running:
        host, port = running.address.split(":")
        with proxied((host, int(port))) as proxy, PoolClient(proxy.address) as pool:
            before = pool.names()
            proxy.silence()
            assert pool.names() == before


def test_a_client_pings_no_more_often_than_the_server_takes() -> None:
    asked, taken = dict(client._OPTIONS), dict(server._OPTIONS)
    assert taken["grpc.http2.min_ping_interval_without_data_ms"] < asked["grpc.keepalive_time_ms"]
    # Without it a server takes pings of idle clients every two hours.
    assert asked["grpc.keepalive_permit_without_calls"] == taken["grpc.keepalive_permit_without_calls"] == 1


def test_a_name_that_does_not_resolve_yet_is_tried_until_the_deadline(tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority").certificate_file
    unresolved = pytest.raises(DeadlineExceeded, match=r"pool\.invalid:7171: not done within 0\.5 s")
    with PoolClient("pool.invalid:7171", token="some-token", tls=authority, deadline=0.5) as pool, unresolved:
        pool.names()
    with PoolClient("pool.invalid:7171", deadline=0.5) as pool, pytest.raises(DeadlineExceeded):
        pool.names()
    # Nobody knows whether it is this machine, so the token stays here.
    with pytest.raises(ConfigError, match=r"pool\.invalid has no address"):
        PoolClient("pool.invalid:7171", token="some-token")
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        PoolClient("pool.invalid")
