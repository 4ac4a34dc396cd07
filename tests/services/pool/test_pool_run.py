"""The pool of a run on a pool server is the pool in its Redis: the same draws, additions and refusals."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.rpc.run_pool import OpenRunPool, open_run_pool
from rlep.services.pool.rpc.tls import ServerTls
from rlep.services.pool.values import PoolOptions, PoolPlace
from tests.services.conftest import TOKENIZER, MakeTrajectory
from tests.services.pool.pool_servers import make_certificate, serving

PROMPTS = [f"{number:032x}" for number in range(8)]


def in_redis(redis: EmbeddedRedis, name: str, options: PoolOptions) -> Pool:
    """The pool itself."""
    return Pool.open(redis.url, name, tokenizer_digest=TOKENIZER, password_file=redis.password_file, options=options)


def on_server(address: str, name: str, options: PoolOptions, **files: Path) -> OpenRunPool:
    """The same as a run opens it."""
    return open_run_pool(PoolPlace(f"grpc://{address}", Path("unused"), name, **files), TOKENIZER, options)


def test_draws_and_additions_are_those_of_the_redis(one_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    options = PoolOptions(minimum=3, cap=5)
    stored = [trajectory(prompt) for prompt in PROMPTS for _ in range(PROMPTS.index(prompt))]
    with (
        in_redis(one_redis, "same", options) as pool,
        serving(one_redis) as server,
        closing(on_server(server.address, "same", options)) as opened,
    ):
        added = opened.pool.add(stored)
        # Of 28 three are beyond the cap; which go, before or after they are stored, is up to their content ids.
        assert added.inserted + len(added.refused) == sum(range(8))
        assert added.inserted - added.evicted == sum(min(held, 5) for held in range(8))
        assert opened.pool.digest() == pool.digest()
        assert opened.pool.prompt_ids() == pool.prompt_ids() == PROMPTS[1:]
        assert opened.pool.stats() == pool.stats()
        for step in range(4):
            mine = opened.pool.sample(PROMPTS, 2, seed=11, step=step)
            wanted = pool.sample(PROMPTS, 2, seed=11, step=step)
            assert mine.counts.tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
            assert mine.ids == wanted.ids
            assert np.array_equal(mine.tokens, wanted.tokens)
            assert mine.logprobs.tobytes() == wanted.logprobs.tobytes()


def test_the_first_addition_makes_the_pool(one_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    with serving(one_redis) as server:
        with closing(on_server(server.address, "made", PoolOptions(cap=64, vocabulary=1000))) as opened:
            opened.pool.add([trajectory(PROMPTS[0])])
        with in_redis(one_redis, "made", PoolOptions(read_only=True)) as pool:
            assert (pool.prompt_ids(), pool.vocabulary) == (PROMPTS[:1], 1000)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("none", PoolOptions(read_only=True), PoolError, "there is no pool none"),
        ("new", PoolOptions(cap=8), ConfigError, r"collection\.cap = 8: a pool that a server makes keeps 64"),
        ("there", PoolOptions(cap=8), PoolError, "pool there was made with at most 5 trajectories a prompt, not 8"),
        ("there", PoolOptions(holds="wrong"), ConfigError, r"collection\.failed needs the Redis itself"),
    ],
)
def test_what_a_redis_refuses_a_server_refuses(
    one_redis: EmbeddedRedis, name: str, options: PoolOptions, error: type[Exception], message: str
) -> None:
    with (
        in_redis(one_redis, "there", PoolOptions(cap=5)),
        serving(one_redis) as server,
        pytest.raises(error, match=message),
    ):
        on_server(server.address, name, options)


def test_another_tokenizer_is_refused(one_redis: EmbeddedRedis) -> None:
    with in_redis(one_redis, "tokens", PoolOptions()), serving(one_redis) as server:
        place = PoolPlace(f"grpc://{server.address}", Path("unused"), "tokens")
        with pytest.raises(PoolError, match="holds token ids of tokenizer tokenizer-digest; this run's is another"):
            open_run_pool(place, "another", PoolOptions(read_only=True))


def test_a_token_comes_from_its_file_and_travels_encrypted(one_redis: EmbeddedRedis, tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    made = make_certificate(tmp_path, "server", authority)
    tokens, token, wrong = tmp_path / "tokens", tmp_path / "token", tmp_path / "wrong"
    tokens.write_text("read@secret abc123\n")
    tokens.chmod(0o600)
    token.write_text("abc123\n")
    wrong.write_text("abc124\n")
    tls = ServerTls(made.certificate_file, made.key_file)
    options = PoolOptions(read_only=True, deadline=10.0)
    with (
        in_redis(one_redis, "secret", PoolOptions()) as pool,
        serving(one_redis, token_file=tokens, tls=tls) as server,
    ):
        place = PoolPlace(
            f"grpcs://{server.address}", tmp_path, "secret", token_file=token, ca_file=authority.certificate_file
        )
        with closing(open_run_pool(place, TOKENIZER, options)) as opened:
            assert opened.pool.digest() == pool.digest()
        with pytest.raises(PoolError, match="no token that this server knows"):
            open_run_pool(replace(place, token_file=wrong), TOKENIZER, options)


def test_what_cannot_be_a_token_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    empty, good = tmp_path / "empty", tmp_path / "good"
    empty.write_text("\n")
    good.write_text("abc123")
    place = PoolPlace("grpc://192.0.2.1:7171", tmp_path, "pool", token_file=good)
    with pytest.raises(ConfigError, match=r"would carry the token of pool\.token_file in the clear: use grpcs://"):
        open_run_pool(place, TOKENIZER, PoolOptions())
    with pytest.raises(ConfigError, match="does not hold one token"):
        open_run_pool(replace(place, token_file=empty), TOKENIZER, PoolOptions())
    with pytest.raises(ConfigError, match="cannot be read"):
        open_run_pool(replace(place, token_file=tmp_path / "none"), TOKENIZER, PoolOptions())


def test_a_url_with_tls_where_the_server_has_none_and_the_reverse_are_said(
    one_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    authority, stranger = make_certificate(tmp_path, "authority"), make_certificate(tmp_path, "stranger")
    made = make_certificate(tmp_path, "server", authority)
    patient, brief = PoolOptions(deadline=300.0), PoolOptions(deadline=1.0)
    with serving(one_redis) as plain:
        place = PoolPlace(f"grpcs://{plain.address}", tmp_path, "pool", ca_file=authority.certificate_file)
        with pytest.raises(PoolError, match=r"it has no TLS; use grpc://"):  # at once: a later try cannot succeed
            open_run_pool(place, TOKENIZER, patient)
    with serving(one_redis, tls=ServerTls(made.certificate_file, made.key_file)) as secure:
        place = PoolPlace(f"grpc://{secure.address}", tmp_path, "pool")
        with pytest.raises(DeadlineExceeded, match=r"if it has TLS, use grpcs:// with pool\.ca_file"):
            open_run_pool(place, TOKENIZER, brief)  # a server that is started again closes connections, too
        place = PoolPlace(f"grpcs://{secure.address}", tmp_path, "pool", ca_file=stranger.certificate_file)
        with pytest.raises(PoolError, match=r"its certificate cannot be verified: check pool\.ca_file"):
            open_run_pool(place, TOKENIZER, patient)
