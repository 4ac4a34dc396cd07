"""What the tests of reward functions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def functions_on_path() -> Iterator[None]:
    """``verifier_functions`` can be imported, here and in worker processes; no proxy stands before loopback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield
