"""Trajectories fetched, listed and removed by their content ids."""

from __future__ import annotations

import pytest

from rlep.core.errors import PoolError, RecordRefused
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.named import contents, fetch, remove
from rlep.services.pool.values import PoolOptions
from tests.services.conftest import MakeTrajectory
from tests.services.pool.test_pool_run import PROMPTS, in_redis


def test_what_was_stored_comes_back_by_name(one_redis: EmbeddedRedis, trajectory: MakeTrajectory) -> None:
    stored = [trajectory(prompt) for prompt in PROMPTS[:3] for _ in range(2)]
    with in_redis(one_redis, "named", PoolOptions()) as pool:
        pool.add(stored)
        wanted = {one.prompt_id: [one.content_id] for one in stored}
        found = fetch(pool, wanted).trajectories()
        assert {prompt: [one.content_id for one in members] for prompt, members in found.items()} == wanted
        assert {prompt: len(ids) for prompt, ids in contents(pool).items()} == dict.fromkeys(PROMPTS[:3], 2)
        assert (remove(pool, wanted), remove(pool, wanted)) == (3, 0)
        with pytest.raises(PoolError, match="lacks 3 of 3 trajectories asked for by name"):
            fetch(pool, wanted)
        with pytest.raises(RecordRefused, match="is not 32 hex digits"):
            fetch(pool, {PROMPTS[0]: ["x"]})
