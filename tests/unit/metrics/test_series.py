"""Metrics as Prometheus series: names, labels, and what has none."""

from __future__ import annotations

import re

import pytest

from rlep.metrics.catalogue import METRICS
from rlep.metrics.series import label_names, series_name, series_of


@pytest.mark.parametrize(
    ("name", "series", "labels"),
    [
        ("rollout/accuracy", "rlep_rollout_accuracy", {}),
        ("ratio/max/replay", "rlep_ratio_max", {"source": "replay"}),
        ("verifier/status/out_of_memory", "rlep_verifier_status", {"status": "out_of_memory"}),
        ("actors/alive/learner", "rlep_actors_alive", {"role": "learner"}),
        ("evaluation/AIME 24/pass/16", "rlep_evaluation_pass", {"data_source": "AIME 24", "k": "16"}),
        ("rollout/part/format", "rlep_rollout_part", {"part": "format"}),
    ],
)
def test_placeholders_become_labels(name: str, series: str, labels: dict[str, str]) -> None:
    found = series_of(name)
    assert found is not None
    assert (found.name, found.labels) == (series, labels)


@pytest.mark.parametrize("name", ["group/replays/2", "verifier/latency/0", "group/replays", "nothing/known"])
def test_entries_of_lists_have_no_series(name: str) -> None:
    assert series_of(name) is None


def test_every_number_has_a_name_of_its_own_that_prometheus_takes() -> None:
    names = [series_name(metric) for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric, name in zip(METRICS, names, strict=True):
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name)
        assert not {"run", *label_names(metric)} & {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}
