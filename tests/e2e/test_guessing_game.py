"""The commands of docs/how-to/train-with-tools.md, in fewer steps."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from rlep.core.jsonl import read_lines
from tests.contract.test_documents import ROOT

PAGE = ROOT / "docs" / "how-to" / "train-with-tools.md"


def test_the_game_of_the_page(tmp_path: Path) -> None:
    for name in ("studies", "configs", "rlep"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = PAGE.read_text()
    make, train = text[text.index("python studies") : text.index("\nrlep console")].splitlines()
    assert train.endswith("--set run.steps=40")
    for line in (make, train.replace("run.steps=40", "run.steps=3")):
        done = subprocess.run(
            shlex.split(line),
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    lines = [line["metrics"] for line in read_lines(tmp_path / "runs" / "live" / "metrics.jsonl")]
    assert len(lines) == 3
    assert all(1 < metrics["episode/turns"] <= 6 for metrics in lines)
