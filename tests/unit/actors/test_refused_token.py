"""A head that refuses the token is told apart before Ray's own client tries, from heads that take it and from no head."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
import ray
from ray.exceptions import AuthenticationError

from rlep.actors.cluster import Cluster
from rlep.actors.ray_private import CHECK_ALIVE, refuses_token
from rlep.config.roles import ClusterConfig
from rlep.core.errors import PlacementError

TOKEN = "a" * 64


@contextmanager
def head(token: str | None) -> Iterator[str]:
    """Stands for Ray's head process: the one call that is made of it, with its token or for everybody; its address."""

    def check(_: bytes, context: grpc.ServicerContext) -> bytes:
        shown = dict(context.invocation_metadata()).get("authorization")
        if token is not None and shown != f"Bearer {token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""

    service, method = CHECK_ALIVE.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {method: grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_only_a_head_that_says_so_refuses() -> None:
    with head(TOKEN) as closed, head(None) as everybodys:  # Ray reads its token once a process; this one has none
        assert [refuses_token(one) for one in (closed, everybodys)] == [True, False]
    assert not refuses_token(closed)  # nobody is there any more: Ray's client says that well


def test_a_refused_token_is_one_sentence_and_ray_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray's client prints 20 lines and takes 48 s"))
    with head(TOKEN) as address, pytest.raises(PlacementError) as refused:
        Cluster(ClusterConfig(address=address), "mine").connect()
    assert str(refused.value) == (
        f"the Ray cluster at '{address}' refuses this token: "
        "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with its head's token"
    )


def test_a_token_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: str) -> bool:
        raise AuthenticationError(
            "RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: /gone. Ensure that"
        )

    monkeypatch.setattr("rlep.actors.cluster.refuses_token", unreadable)
    with head(None) as address, pytest.raises(PlacementError) as refused:
        Cluster(ClusterConfig(address=address), "mine").connect()
    assert str(refused.value).startswith(
        "this process has no token for Ray: RAY_AUTH_TOKEN_PATH is set but file cannot"
    )
    assert str(refused.value).count("Ensure") == 0
