"""Room that the parts need on disk and in shared memory, said before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from rlep.check.finding import Finding
from rlep.check.parts.synthetic import LAYERS
from rlep.config.schema import Config
from rlep.core.errors import ModelError
from rlep.core.plural import sized
from rlep.hub.resolve import model_directory
from rlep.plan.host import TRAINER_WIDTH, VERSIONS
from rlep.plan.model_shape import read_shape, width_of

MODEL_WIDTH = 2
"""Bytes a weight of the small model's file."""


def room(config: Config, disk: Path, memory: Path) -> Finding | None:
    """Hold the largest scratch of a part against what is free in its two places; None for a shape that is not known.

    The small model lies on disk all the time, and beside it at most one checkpoint, of ``state``.
    """
    try:
        weights = replace(read_shape(model_directory(config.model)), layers=LAYERS).parameters
    except ModelError:
        return None
    learner, generator = config.learner, config.generator
    places = {disk.parent: weights * (MODEL_WIDTH + TRAINER_WIDTH + width_of(learner.compute_dtype))}
    if generator.transfer == "shared_memory":
        published = VERSIONS * weights * width_of(generator.compute_dtype)
        places[memory.parent] = places.get(memory.parent, 0) + published  # one place where there is no shared memory
    free = {place: shutil.disk_usage(place).free for place in places}
    needs = [f"{sized(wanted)} in {place} ({sized(free[place])} free)" for place, wanted in places.items()]
    detail = f"two layers of the model's shape, {weights:,} weights, need at most {' and '.join(needs)}"
    if all(free[place] >= wanted for place, wanted in places.items()):
        return Finding("scratch", "ok", detail)
    remedy = "set TMPDIR to a directory with room, or make some; /dev/shm of a container grows with --shm-size"
    return Finding("scratch", "wrong", detail, remedy)
