"""Leftovers of killed owners go; those of living ones stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlep.actors.places import private_directory


def test_a_new_directory_is_private_and_only_dead_owners_leftovers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    dead = tmp_path / f"rlep-test-{os.getuid()}-{ended.pid}-x"
    other_kind = tmp_path / f"rlep-other-{os.getuid()}-{ended.pid}-x"
    living = tmp_path / f"rlep-test-{os.getuid()}-{os.getppid()}-x"
    for directory in (dead, other_kind, living):
        directory.mkdir()
        (directory / "file").write_text("")
    made = private_directory("test")
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    assert not dead.exists()
    assert living.exists()
    assert other_kind.exists()
    assert made.name.startswith(f"rlep-test-{os.getuid()}-{os.getpid()}-")
