"""What Ray reads of the environment when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json
import rlep.actors
from ray._private.worker import _maybe_modify_runtime_env
print(json.dumps(_maybe_modify_runtime_env({}, False)))
"""


@pytest.mark.parametrize(("asked", "copies"), [(None, False), ("1", True)])
def test_under_uv_run_actors_have_the_driver_s_environment(asked: str | None, copies: bool, tmp_path: Path) -> None:
    # Ray looks for an ancestor whose command line begins with `uv run`: here a shell that runs the script `run`.
    (tmp_path / "uv").symlink_to("/bin/sh")
    (tmp_path / "run").write_text('"$PYTHON" -c "$CODE"\nexit $?\n')
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    environment |= {"PYTHON": sys.executable, "CODE": RUN, "PYTHONPATH": str(Path(__file__).parents[3])}
    if asked is not None:
        environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = asked
    done = subprocess.run(
        [str(tmp_path / "uv"), "run"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout)) == ({"py_executable", "working_dir"} if copies else set())
