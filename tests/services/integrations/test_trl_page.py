"""The example of docs/how-to/replay-in-trl.md: TRL trains with a pool server beside it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.contract.test_command_blocks import blocks, workplace
from tests.contract.test_documents import ROOT
from tests.services.integrations.trl_scene import own_environment

PAGE = ROOT / "docs" / "how-to" / "replay-in-trl.md"


def test_the_pages_training_replays(tmp_path: Path) -> None:
    home = workplace(tmp_path, PAGE)
    (block,) = blocks(PAGE)
    environment = own_environment() | {
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}",
    }
    environment |= {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        ["bash", "-euc", block.text],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed = ""
            assert shell.stdout is not None
            while "were replayed" not in printed:
                line = shell.stdout.readline()
                assert line, printed
                printed += line
            assert shell.wait(timeout=60) == 0
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # the server, which the example leaves running
    found = re.search(r"(\d+) of 96 responses were replayed", printed)
    assert found is not None
    assert 0 < int(found[1]) <= 7 * 4  # two of each group from the second rollout on
