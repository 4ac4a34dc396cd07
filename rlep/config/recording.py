"""The part of the config tree that says what a run records beside ``metrics.jsonl``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlep.config.roles import Count, Section


class RolloutFilesConfig(Section):
    """``rollouts/`` in the run directory: every trajectory of every step as a row, and the texts of chosen groups."""

    groups: Count = 32
    """Groups of each step whose texts, token ids and log-probs are written: half drawn, half extreme; 0 writes none."""
    watch: tuple[str, ...] = Field((), max_length=64)
    """Ids of at most 64 training prompts whose groups are written on top of those, in every step that has them."""
    keep_gib: float = Field(8.0, ge=0)
    """GiB that the token files of all steps may take; the oldest are removed first. The rows are kept."""


class TrackingConfig(Section):
    """Where metrics go beside ``metrics.jsonl``, which is always written."""

    sinks: tuple[Literal["tensorboard", "wandb", "mlflow", "prometheus"], ...] = ()
    """Extra sinks; the first three need the extra of their name installed, ``prometheus`` scrapes Ray's own metrics."""
    project: str = "rlep"
    """Project or experiment name in the tracker."""
