"""Metrics as Prometheus has them: a name, and labels for what stands in its ``<placeholders>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rlep.metrics.catalogue import Metric, patterns

LAST_PROGRESS = "rlep_last_progress_timestamp_seconds"
STEP = "rlep_step"


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of a run."""

    name: str
    """Such as ``rlep_ratio_max``; Ray exports it as ``ray_rlep_ratio_max``."""
    labels: Mapping[str, str]
    """Such as ``source="fresh"``, without the run's name."""
    help: str


def series_name(metric: Metric) -> str:
    """``ratio/max/<source>`` → ``rlep_ratio_max``."""
    fixed = re.sub(r"<\w+>", "", metric.name)
    return "rlep_" + re.sub(r"[^a-z0-9]+", "_", fixed).strip("_")


def label_names(metric: Metric) -> tuple[str, ...]:
    """``ratio/max/<source>`` → ``("source",)``."""
    return tuple(re.findall(r"<(\w+)>", metric.name))


@lru_cache(maxsize=4096)
def series_of(name: str) -> Series | None:
    """The series of a metric such as ``ratio/max/fresh``; None for an entry of a list, which has none."""
    for metric, pattern in patterns():
        if metric.kind == "number" and (found := pattern.fullmatch(name)):
            return Series(series_name(metric), found.groupdict(), f"{metric.help} [{metric.unit}]")
    return None
