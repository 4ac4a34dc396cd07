"""What the loss counts for each source, as sums that add up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from rlep.core.types import Float64Array

SOURCES = ("fresh", "replay")

COLUMNS = (
    "trajectories",
    "tokens",
    "loss",
    "advantage",
    "advantage_mass",
    "ratio",
    "clip_low",
    "clip_high",
    "dual_clip",
    "logprob",
    "old_kl",
    "reference_tokens",
    "reference_kl",
    "entropy_tokens",
    "entropy",
)
"""What is summed; ``reference_tokens`` and ``entropy_tokens`` count the tokens for which such a value was supplied."""

_MEANS = {
    "advantage_mean": ("advantage", "tokens"),
    "advantage_mass": ("advantage_mass", "tokens"),
    "ratio_mean": ("ratio", "tokens"),
    "clip_fraction_low": ("clip_low", "tokens"),
    "clip_fraction_high": ("clip_high", "tokens"),
    "dual_clip_fraction": ("dual_clip", "tokens"),
    "logprob_mean": ("logprob", "tokens"),
    "old_kl": ("old_kl", "tokens"),
    "reference_kl": ("reference_kl", "reference_tokens"),
    "entropy": ("entropy", "entropy_tokens"),
}


@dataclass(frozen=True)
class LossShares(Mapping[str, float]):
    """Shares of unmasked tokens, readable as attributes and as a mapping."""

    clip_fraction_low: float
    """A < 0 and ratio below 1 − clip_low."""
    clip_fraction_high: float
    """A > 0 and ratio above 1 + clip_high."""
    dual_clip_fraction: float
    """A < 0 and ratio above dual_clip."""

    def __getitem__(self, name: str) -> float:
        if name not in tuple(self):
            raise KeyError(name)
        return float(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


def shares(sums: Float64Array) -> LossShares:
    """Shares over both sources, from sums ``[2, columns]``."""
    totals = dict(zip(COLUMNS, (float(value) for value in sums.sum(axis=0)), strict=True))
    tokens = max(totals["tokens"], 1.0)
    return LossShares(totals["clip_low"] / tokens, totals["clip_high"] / tokens, totals["dual_clip"] / tokens)


def source_metrics(sums: Float64Array, ratio_max: Float64Array) -> dict[str, float]:
    """Named metrics of an update, such as ``fresh/ratio_mean`` or ``replay/clip_fraction_high``.

    ``<source>/trajectories``, ``<source>/tokens`` and ``<source>/loss`` (its share of the loss, a sum) are always there:
    they show whether replays reached the loss. Means are left out for a source without tokens, and where their input
    was not supplied.

    Args:
        sums: ``[2, columns]``, added over micro-batches and ranks.
        ratio_max: ``[2]``, the largest over micro-batches and ranks.
    """
    metrics: dict[str, float] = {}
    for source, row, largest in zip(SOURCES, sums, ratio_max, strict=True):
        values = dict(zip(COLUMNS, (float(value) for value in row), strict=True))
        metrics |= {f"{source}/{name}": values[name] for name in ("trajectories", "tokens", "loss")}
        for name, (total, count) in _MEANS.items():
            if values[count]:
                metrics[f"{source}/{name}"] = values[total] / values[count]
        if values["tokens"]:
            metrics[f"{source}/ratio_max"] = float(largest)
    return metrics
