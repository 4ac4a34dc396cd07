"""Reads under way at once get the right answers, also where their connection is lost in between."""

from __future__ import annotations

import pytest
import redis

from rlep.core.errors import PoolError
from rlep.services.pool.ahead import Ahead
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.storage.connection import Client, Command, RetryingRedis, connect

BATCHES: list[list[Command]] = [[("HGET", f"ahead:{batch}", str(n)) for n in range(3)] for batch in range(4)]
WANTED = [[b"%d" % (10 * batch + n) for n in range(3)] for batch in range(4)]


@pytest.fixture(name="client")
def a_client(one_redis: EmbeddedRedis) -> redis.Redis:
    client = connect(one_redis.url, password_file=one_redis.password_file)
    assert isinstance(client, redis.Redis)
    for batch in range(4):
        client.hset(f"ahead:{batch}", mapping={str(n): 10 * batch + n for n in range(3)})
    return client


def drop_others(client: redis.Redis) -> None:
    """Close every connection but the one that says so."""
    client.client_kill_filter(_type="normal", skipme=True)


def test_answers_come_in_the_order_asked(client: Client) -> None:
    with Ahead(RetryingRedis(client), "reading") as ahead:
        for batch in BATCHES[:3]:
            ahead.ask(batch)
        assert ahead.answers() == WANTED[0]
        ahead.ask(BATCHES[3])
        assert [ahead.answers() for _ in range(3)] == WANTED[1:]


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_what_a_lost_connection_left_open_is_asked_for_again(client: redis.Redis, answered: int) -> None:
    with Ahead(RetryingRedis(client), "reading") as ahead:
        for batch in BATCHES[:3]:
            ahead.ask(batch)
        assert [ahead.answers() for _ in range(answered)] == WANTED[:answered]
        drop_others(client)
        ahead.ask(BATCHES[3])
        assert [ahead.answers() for _ in range(4 - answered)] == WANTED[answered:]


def test_answers_that_nobody_took_are_not_the_next_readers(client: redis.Redis) -> None:
    with Ahead(RetryingRedis(client), "reading") as ahead:
        ahead.ask(BATCHES[0])
        ahead.ask(BATCHES[1])
    assert client.hget("ahead:2", "1") == b"21"


def test_an_error_of_redis_is_said_as_elsewhere(client: redis.Redis) -> None:
    with Ahead(RetryingRedis(client), "reading answers") as ahead:
        ahead.ask([("GET", "ahead:0")])
        with pytest.raises(PoolError, match=r"reading answers: .*WRONGTYPE"):
            ahead.answers()
    assert client.hget("ahead:2", "1") == b"21"
