"""The example of docs/how-to/come-from-verl-or-trl.md: another trainer draws from a served pool, scores and takes the loss."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.contract.test_command_blocks import blocks, workplace
from tests.contract.test_documents import ROOT

PAGE = ROOT / "docs" / "how-to" / "come-from-verl-or-trl.md"


def test_the_pages_example_draws_scores_and_takes_a_gradient(tmp_path: Path) -> None:
    home = workplace(tmp_path, PAGE)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{home}",
    }
    (block,) = blocks(PAGE)
    with subprocess.Popen(
        ["bash", "-euc", block.text],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            assert shell.stdout is not None
            line = shell.stdout.readline()
            assert shell.wait(timeout=60) == 0
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # the server, which the example leaves running
    # Rewards 1, −1 and the replay's 1: mean 1/3, sample deviation √(4/3), hence 0.577 and −1.155. The three responses are
    # equally long and the policies equal, so that the loss is minus their mean.
    assert line.replace("-0.000", "0.000") == "1 replay, advantages [ 0.58 -1.15  0.58], loss 0.000\n"
