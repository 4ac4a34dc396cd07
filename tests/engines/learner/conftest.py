"""What the tests of one learner rank share: a tiny model, and a starter of learners on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlep.engines.learner.rank import LearnerRank
from tests.engines.learner.learner_cases import write_tiny_model
from tests.engines.learner.learner_process import single_ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 with a tied head."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), "qwen2-tied")


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Callable[..., LearnerRank]]:
    """Starter of one learner at a time: see ``single_ranks``."""
    with single_ranks(tmp_path, model) as begin:
        yield begin
