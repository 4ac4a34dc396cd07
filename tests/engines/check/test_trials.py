"""The parts as a whole: the room they need, what they need no more, and what is left when they are ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from rlep.check.parts.room import room
from rlep.config.settings import load_config
from rlep.core.paths import SHARED_MEMORY
from tests.engines.check.conftest import MODEL
from tests.small import BASE
from tests.waiting import wait_until

SHAPE = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 8,
    "intermediate_size": 16,
    "vocab_size": 10,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
# Embedding, head and last norm: 2 · 10 · 8 + 8 = 168. A layer: q, k, v, o 8 · 24 = 192, feed-forward 3 · 8 · 16 = 384, norms
# 2 · 8 + 2 · 4 = 24. Two layers: 168 + 2 · 600 = 1,368 weights. On disk 2 + 12 + 4 bytes each, two float32 copies in memory.
ON_DISK, IN_MEMORY = 1368 * 18, 1368 * 8

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("disk", "memory", "level"),
    [(ON_DISK, IN_MEMORY, "ok"), (ON_DISK - 1, IN_MEMORY, "wrong"), (ON_DISK, IN_MEMORY - 1, "wrong")],
)
def test_the_room_is_said_first(
    disk: int, memory: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    free = {Path("/disk"): disk, Path("/memory"): memory}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, free[place]))
    found = room(load_config([BASE], [f'model.path="{tmp_path}"']), Path("/disk/a"), Path("/memory/b"))
    assert found is not None
    assert found.level == level
    assert "1,368 weights, need at most 24.0 KiB in /disk" in found.detail
    assert "10.7 KiB in /memory" in found.detail
    assert ("set TMPDIR" in found.remedy) == (level == "wrong")


def test_one_place_for_both_has_to_hold_both(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    found = room(load_config([BASE], [f'model.path="{tmp_path}"']), tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert f"need at most 34.7 KiB in {tmp_path}" in found.detail  # 24.0 + 10.7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_try_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "check", str(BASE), "--try", "--set", f'model.path="{MODEL}"']
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as command:
        wait_until(lambda: list(tmp_path.glob("rlep-check-*/gradients/*")), "the ranks that meet", 240)
        ranks = psutil.Process(command.pid).children(recursive=True)
        assert [path.name for path in tmp_path.glob("rlep-check-*/*") if path.is_dir()].count("attention") == 0
        command.send_signal(number)
        output, _ = command.communicate(timeout=60)
    assert command.returncode == 130, output
    assert output.splitlines()[-1] == "interrupted"
    assert not list(tmp_path.glob("rlep-check-*"))
    assert not list(SHARED_MEMORY.glob(f"rlep-check-*-{command.pid}-*"))
    _, left = psutil.wait_procs(ranks, timeout=30)
    assert not left
