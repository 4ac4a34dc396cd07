"""A model's directory on the node of an actor: the driver's, or this node's own copy of a commit of the hub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rlep.config.schema import ModelConfig
from rlep.core.errors import DeadlineExceeded, ModelError


def model_on_node(driver: Path, model: ModelConfig, deadline_s: float, environment: Mapping[str, str]) -> Path:
    """Return ``driver``, the directory on the driver's machine, or where this node has the recorded commit.

    Another process downloads what the node lacks, in ``environment``: that of an engine never reaches the hub.

    Raises:
        ModelError: the node cannot get the model; the sentence of the hub says why.
        DeadlineExceeded: not there within ``deadline_s`` seconds.
    """
    if model.revision is None:
        return driver
    what = f"{model.path} of the hub, commit {model.revision}"
    command = [sys.executable, "-m", "rlep.hub", str(model.path), model.revision]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(
            f"this node had no copy of {what} within {deadline_s:.0f} s: raise start_deadline_s of generator and learner, or let "
            "the nodes share HF_HOME"
        ) from None
    if done.returncode:
        raise ModelError(f"this node has no copy of {what}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return Path(done.stdout.strip().rpartition("\n")[2])
