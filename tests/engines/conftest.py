"""What the tests of several engines share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """The process's environment as it was, when the file's tests are over: starting a sampler changes it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
