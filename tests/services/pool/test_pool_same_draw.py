"""One draw, by every way to a pool, is the same to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlep import AsyncPoolClient, PoolClient
from rlep.core.draws import draw_uniform
from rlep.core.types import Trajectory, prompt_id_of
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.sample import Sample
from tests.services.pool.pool_kills import processes, serve
from tests.services.pool.pool_servers import reserved_address

MakeTrajectory = Callable[..., Trajectory]
COUNT, SEED, STEP = 3, 11, 29
# 130 prompts with 0 to 6 answers of 1 to 9 tokens each; 64 prompts are one part of a sample.
HELD = {prompt_id_of(f"question {n}", "42"): n % 7 for n in range(130)}
PROMPTS = [*HELD, "nobody has heard of it"]


def rows(sample: Sample) -> dict[str, object]:
    """What a sample gives each prompt, as values that compare by their bits."""
    ends = np.cumsum(sample.counts)
    found = dict[str, object]()
    for prompt_id, count, end in zip(sample.prompt_ids, sample.counts.tolist(), ends.tolist(), strict=True):
        part, tokens = slice(end - count, end), slice(*sample.offsets[[end - count, end]])
        columns = (np.diff(sample.offsets)[part], sample.tokens[tokens], sample.logprobs[tokens], sample.finished[part])
        found[prompt_id] = (
            count,
            sample.ids[part],
            sample.details[part],
            *((column.dtype, column.tobytes()) for column in columns),
        )
    return found


def expected_ids(batch: list[Trajectory]) -> list[str]:
    """Content ids of the draw, from its definition: ranks among a prompt's ascending content ids."""
    held = {p: sorted(t.content_id for t in batch if t.prompt_id == p) for p in PROMPTS}
    available = [len(ids) if len(ids) >= 2 else 0 for ids in held.values()]
    ranks, offsets = draw_uniform(PROMPTS, available, COUNT, seed=SEED, step=STEP)
    return [held[p][rank] for p, a, b in zip(PROMPTS, offsets, offsets[1:], strict=False) for rank in ranks[a:b]]


@pytest.fixture
def batch(trajectory: MakeTrajectory) -> list[Trajectory]:
    """Every answer; a seventh of them has no log-probs, the others have their own."""
    made = [trajectory(p, [n, i, *range(n % 8)]) for n, p in enumerate(HELD) for i in range(HELD[p])]
    draw = np.random.default_rng(3)
    for at, one in enumerate(made):
        logprobs = None if at % 7 == 0 else -draw.random(len(one.tokens), np.float32)
        object.__setattr__(one, "logprobs", logprobs)
    return made


class Draws:
    """Draws of one content at one address: each must be the first one to the bit."""

    def __init__(self, first: Sample) -> None:
        self.first = first

    def add(self, what: str, sample: Sample) -> None:
        assert rows(sample) == rows(self.first), what
        if sample.prompt_ids == self.first.prompt_ids:
            assert sample.ids == self.first.ids, what
            for name in ("counts", "offsets", "tokens", "logprobs"):
                one, other = getattr(sample, name), getattr(self.first, name)
                assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), (what, name)


def draw(source: Pool | PoolClient, prompts: list[str] = PROMPTS) -> Sample:
    return source.sample(prompts, COUNT, seed=SEED, step=STEP)


def opened(server: EmbeddedRedis, name: str) -> Pool:
    return Pool.open(server.url, name, tokenizer_digest="tokenizer-digest", password_file=server.password_file)


async def test_a_draw_is_the_same_to_the_bit_by_every_way(tmp_path: Path, batch: list[Trajectory]) -> None:
    with (
        EmbeddedRedis(tmp_path / "redis") as server,
        reserved_address() as address,
        processes() as started,
        PoolClient(address, pool="one") as client,
        PoolClient(address, pool="one") as second,
        PoolClient(address, pool="other") as other,
    ):
        process = started.start(serve, server.directory, address)
        assert client.add(batch).inserted == len(batch)
        shuffled = random.Random(1).sample(batch, len(batch))
        assert sum(other.add(shuffled[at : at + 17]).inserted for at in range(0, len(batch), 17)) == len(batch)

        draws = Draws(draw(client))
        assert list(draws.first.ids) == expected_ids(batch)
        draws.add("another client", draw(second))
        draws.add("filled in another order", draw(other))
        async with AsyncPoolClient(address, pool="one") as awaited:
            draws.add("awaited", await awaited.sample(PROMPTS, COUNT, seed=SEED, step=STEP))
        for name in ("one", "other"):
            with opened(server, name) as pool:
                draws.add(f"pool {name} itself", draw(pool))
        draws.add("prompts in another order", draw(client, random.Random(2).sample(PROMPTS, len(PROMPTS))))
        parts = [rows(draw((client, second)[at % 2], PROMPTS[at::4])) for at in range(4)]
        assert {prompt_id: row for part in parts for prompt_id, row in part.items()} == rows(draws.first)

        server.stop()
        server.start()
        draws.add("Redis stopped and started again below a server", draw(client))
        process.kill()
        process.join()
        started.start(serve, server.directory, address)
        draws.add("a server killed and started again", draw(client))
