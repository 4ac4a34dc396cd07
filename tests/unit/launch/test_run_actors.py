"""The pools that a run opens."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rlep.actors.cluster import Cluster
from rlep.launch.roles import RunActors
from tests.unit.driver.driver_values import config_of


@pytest.mark.parametrize(("source", "options"), [("offline", {"minimum": 2}), ("both", {"minimum": 1})])
def test_the_minimum_is_of_a_question_s_stored_and_own_responses_together(
    monkeypatch: pytest.MonkeyPatch, source: str, options: dict[str, int]
) -> None:
    """With ``both``, live replay joins the two before it counts: one of each are two."""
    opened: list[Any] = []
    monkeypatch.setattr(RunActors, "_pool", lambda _, name, inputs, given=None, **__: opened.append(given))
    actors = RunActors(config_of(replay={"source": source, "minimum": 2}), cast(Cluster, None))
    actors.pool(cast(Any, None), read_only=True)
    actors.pool(cast(Any, None), read_only=False)  # a collection's is the pool's own
    assert opened == [options, None]
