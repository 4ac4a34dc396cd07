"""What a token that may append cannot do to a pool that others use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool import pool as pool_module
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.values import LONGEST_LABEL
from tests.services.pool.pool_servers import serving, token_file

MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    with serving(
        one_redis, token_file=token_file(tmp_path_factory.mktemp("tokens"), "append append-token\nadmin-token\n")
    ) as running:
        yield running


def client_of(server: PoolServer, token: str, pool: str, **options: object) -> PoolClient:
    return PoolClient(server.address, token=token, pool=pool, **options)  # type: ignore[arg-type]


def test_an_appender_states_the_vocabulary_of_a_pool_that_it_makes(
    server: PoolServer, trajectory: MakeTrajectory
) -> None:
    with client_of(server, "append-token", "made", vocabulary=300) as own:
        assert own.add([trajectory("q1", [150])]).inserted == 1
        assert own.stats().vocabulary == 300


def test_an_empty_pool_of_somebody_else_gets_no_vocabulary_from_an_appender(
    server: PoolServer, trajectory: MakeTrajectory
) -> None:
    """One of a single token would refuse what everybody else adds, for good."""
    answer = trajectory("q1", [150])
    with client_of(server, "admin-token", "empty") as owner:
        owner.open(tokenizer_digest=answer.provenance.tokenizer_digest)
        with client_of(server, "append-token", "empty", vocabulary=1) as hostile:
            hostile.open(tokenizer_digest=answer.provenance.tokenizer_digest)
            assert hostile.add([trajectory("q1", [0])]).inserted == 1
        assert owner.add([answer]).inserted == 1
        assert owner.stats().vocabulary is None


def test_who_holds_a_lease_is_told_without_the_word_that_ends_it(server: PoolServer) -> None:
    """An administrator may end the lease of somebody who keeps renewing it."""
    with client_of(server, "append-token", "held") as one, client_of(server, "append-token", "held") as other:
        assert one.lease("word-of-one run, process 7 of host", 60) is None
        who, _ = other.lease("word-of-other run", 60) or ("", 0.0)
        assert who == "- run, process 7 of host"
        assert other.lease(who, 0) is not None  # ends nothing
        with client_of(server, "admin-token", "held") as admin:
            holder, _ = admin.lease("admin", 1) or ("", 0.0)
            assert admin.lease(holder, 0) is None
        assert other.lease("word-of-other run", 60) is None


def test_the_vocabulary_of_a_pool_with_records_is_not_an_appenders(
    server: PoolServer, trajectory: MakeTrajectory
) -> None:
    with client_of(server, "append-token", "used") as run:
        assert run.add([trajectory("q0", [999])]).inserted == 1
        with client_of(server, "append-token", "used", vocabulary=1) as hostile:
            assert hostile.add([trajectory("q0", [0])]).inserted == 1
        assert run.add([trajectory("q0", [998])]).inserted == 1
        assert run.sample(["q0"], 3, seed=0, step=0).counts.tolist() == [3]
    with client_of(server, "admin-token", "used", vocabulary=1000) as admin:
        assert admin.add([trajectory("q0", [1])]).inserted == 1
        (reason,) = admin.add([trajectory("q1", [1000]), trajectory("q1", [999])]).refused
        assert reason[1] == "prompt q1: token id 1000 ≥ vocabulary 1000"


def test_an_epoch_leaves_the_writers_next_incarnations_theirs(server: PoolServer, trajectory: MakeTrajectory) -> None:
    for epoch in (7, 8, int(time.time()), int(1000 * time.time())):
        with client_of(server, "append-token", "fenced", writer_epoch=epoch) as run:
            assert run.add([trajectory()]).inserted == 1
    last = (1 << 53) - 1
    with (
        client_of(server, "append-token", "fenced", writer_epoch=last) as hostile,
        pytest.raises(ConfigError, match=f"writer main: epoch {last} is beyond [0-9]+; the next one is {epoch + 1}"),
    ):
        hostile.add([trajectory()])
    with client_of(server, "append-token", "fenced", writer_epoch=epoch + 1) as run:
        assert run.add([trajectory()]).inserted == 1
    with (
        client_of(server, "append-token", "fenced", writer_epoch=epoch) as old,
        pytest.raises(PoolError, match="newer incarnation"),
    ):
        old.add([trajectory()])


@pytest.mark.parametrize("value", [1e30, -1e30, 2.0, -100_352.0])
def test_log_probs_that_no_model_gives_are_refused_alone(
    server: PoolServer, trajectory: MakeTrajectory, value: float
) -> None:
    wrong = replace(trajectory("q0", [1, 2]), logprobs=np.array([-0.5, value], np.float32))
    with client_of(server, "append-token", "probable") as client:
        report = client.add([wrong, trajectory("q0")])
    low, high = min(-0.5, value), max(-0.5, value)
    assert report.inserted == 1
    assert [reason for _, reason in report.refused] == [
        f"its log-probs run from {low:g} to {high:g}; they are within -100000 to 1"
    ]


def test_names_that_are_too_long_are_refused_alone(server: PoolServer, trajectory: MakeTrajectory) -> None:
    """Each is listed in the statistics, which everybody gets who opens the pool."""
    one, suffix = trajectory("q0"), len("@3")
    longest, longer = ("p" * (LONGEST_LABEL - suffix + more) for more in (0, 1))
    named = [
        replace(trajectory("q0"), provenance=replace(one.provenance, policy_digest=name)) for name in (longest, longer)
    ]
    graded = replace(trajectory("q0"), verdict=replace(one.verdict, verifier="v" * 60_000))
    with client_of(server, "append-token", "named") as client:
        report = client.add([one, *named, graded])
        assert (report.inserted, set(client.stats().by_policy)) == (2, {"policy@3", f"{longest}@3"})
    assert [reason for _, reason in report.refused] == [
        f"its policy or verifier has a name of {length} characters; at most 4096" for length in (4097, 60_002)
    ]


def test_statistics_list_what_fits_and_count_the_rest(
    server: PoolServer, trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_LISTED_BYTES", len('{"policy@9": 3}{"policy@1": 2}'))
    records = [trajectory("q0", policy_version=version) for version in (9, 5, 1, 9, 1, 9, 7)]
    with client_of(server, "append-token", "many") as client:
        assert client.add(records).inserted == 7
        stats = client.open(read_only=True)
    assert (stats.by_policy, stats.by_verifier) == ({"policy@1": 2, "policy@9": 3, "others": 2}, {"math@1": 7})


def test_a_lease_ends_soon_after_its_holder(server: PoolServer) -> None:
    with client_of(server, "append-token", "leased") as client:
        assert client.lease("a hostile one", 300) is None
        for seconds in (301, 1e12, -1):
            with pytest.raises(ConfigError, match=r"a lease of \S+ s: at most 300 s, renewed before it ends"):
                client.lease("a hostile one", seconds)
