"""The stubs in the tree are those of the protos in the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_stubs_are_what_the_protos_give(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "protos.sh", tmp_path], check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert made == sorted(
        path.relative_to(ROOT) for path in (ROOT / "rlep").rglob("*_pb2*.py*") if path.suffix != ".pyc"
    )
    assert {path: (ROOT / path).read_text() for path in made} == {path: (tmp_path / path).read_text() for path in made}
