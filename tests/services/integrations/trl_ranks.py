"""One of several processes of a training with replay: ``python -m torch.distributed.run … trl_ranks.py SETTINGS.json``.

``SETTINGS.json``: ``address`` and ``pool``, ``replay`` (arguments of ``TrlReplay``), ``output``, ``given`` (of ``trained``), and
``engine``: generate by the stand-in for vLLM. Each process writes ``OUTPUT/rank-N.json``: by step the global row and content id
of each replay, and the prompts; the log, and the calls of the engine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rlep import PoolClient
from rlep.integrations.trl import TrlReplay
from tests.services.integrations.trl_scene import Engine, trained


def main() -> None:
    """Train, and write what this process saw."""
    given = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    engine = Engine() if given.get("engine") else None
    with PoolClient(given["address"], pool=given["pool"]) as pool:
        done = trained(Path(given["output"]), TrlReplay(pool, **given["replay"]), engine=engine, **given["given"])
    first = {step: rank * len(prompts) for step, prompts in done.prompts.items()}
    drawn = {step: [(first[step] + row, name) for row, name in rows] for step, rows in done.drawn.items()}
    seen = {"drawn": drawn, "prompts": done.prompts, "log": done.log, "calls": engine.calls if engine else []}
    Path(given["output"], f"rank-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
