"""For each file a browser, Debian's ``chromium-headless-shell`` or ``chromium``, and a console."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.browser_scene import WAIT_MS, Served, serving, write_home

REQUIRED = "RLEP_BROWSER_TESTS"
"""Where this is 1 a browser must be there."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window. Playwright would bring one of its own, which is not in the lock."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        reason = "no browser is installed: apt-get install chromium-headless-shell (Debian)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(f"{reason}; with {REQUIRED}=1 that is an error")
    expect.set_options(timeout=WAIT_MS)
    unconfined = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses its sandbox to root
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=unconfined, timeout=WAIT_MS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A console over ``write_home``, in a process of its own."""
    home = tmp_path_factory.mktemp("home")
    runs = write_home(home)
    with serving(runs, "--pool", runs / "a" / "pool") as console:
        yield console
