"""Metrics as Prometheus has them: a name, and labels for what stands in its ``<placeholders>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rlep.metrics.catalogue import METRICS, PLACEHOLDERS, Metric

LAST_STEP = "rlep_last_step_timestamp_seconds"
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
    for metric, pattern in _patterns():
        if found := pattern.fullmatch(name):
            return Series(series_name(metric), found.groupdict(), f"{metric.help} [{metric.unit}]")
    return None


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    def pattern(name: str) -> str:
        parts = re.split(r"<(\w+)>", name)
        return "".join(f"(?P<{p}>{PLACEHOLDERS[p]})" if i % 2 else re.escape(p) for i, p in enumerate(parts))

    return tuple((metric, re.compile(pattern(metric.name))) for metric in METRICS if metric.kind == "number")
