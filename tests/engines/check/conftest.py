"""What the checks of the self-test are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.check.parts.synthetic import Rig, build_model
from rlep.config.settings import load_config
from tests.small import BASE

MODEL = Path("rlep/quickstart/model").absolute()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """The quickstart's configuration and shape."""
    build_model(MODEL, tmp_path / "model")
    places = [tmp_path / name for name in ("scratch", "shared")]
    for place in places:
        place.mkdir()
    return Rig(load_config([BASE], [f'model.path="{MODEL}"']), tmp_path / "model", *places)
