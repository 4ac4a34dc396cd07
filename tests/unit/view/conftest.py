"""A console over one run, for the files that read it and change nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.view.console_scene import client_of, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the run ``a``."""
    directory = tmp_path_factory.mktemp("home") / "runs"
    asyncio.run(write_run(directory / "a"))
    return directory


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    """Logged in to a console over ``runs``."""
    return client_of(runs)
