"""Which ranks are reserved together: each by itself, or those of one replica, which then are on one node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlep.actors.learners import Learners
from rlep.config.roles import ActorConfig
from rlep.config.schema import Config


@pytest.mark.parametrize(
    ("replicas", "bundles", "cpus", "gpus", "slots"),
    [(1, 4, 2.0, 1.0, [0, 1, 2, 3]), (2, 2, 4.0, 2.0, [0, 0, 1, 1]), (4, 4, 2.0, 1.0, [0, 1, 2, 3])],
)
def test_the_ranks_of_a_replica_share_a_bundle(
    replicas: int, bundles: int, cpus: float, gpus: float, slots: list[int]
) -> None:
    reserved: list[Sequence[ActorConfig]] = []
    cluster = cast(Any, SimpleNamespace(reserve=lambda name, wanted: reserved.append(wanted)))
    learner = {"ranks": 4, "replicas": replicas, "cpus": 2, "gpus": 1, "label_selector": {"rlep-role": "learner"}}
    learners = Learners(cluster, Config().with_values(learner=learner), [Path("model")])
    assert [learners._slot(rank).bundle for rank in range(4)] == slots
    for wanted in reserved:
        assert wanted == [ActorConfig(cpus=cpus, gpus=gpus, label_selector={"rlep-role": "learner"})] * bundles
