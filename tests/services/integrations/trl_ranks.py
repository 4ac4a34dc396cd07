"""One of several processes of a training with replay: ``python -m torch.distributed.run … trl_ranks.py SETTINGS.json``.

``SETTINGS.json``: ``address`` and ``pool``, ``replay`` (arguments of ``TrlReplay``), ``output``, ``given`` (of ``trained``),
``engine``: generate by the stand-in for vLLM, and ``late``: so many first calls of the main process find no server. Each process
writes ``OUTPUT/rank-N.json``: by step the global row and content id of each replay, and the prompts; the log, and the calls of
the engine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rlep import PoolClient
from rlep.core.errors import DeadlineExceeded
from rlep.integrations import replayer
from rlep.integrations.trl import TrlReplay
from tests.services.integrations.trl_scene import Engine, trained


def keep_away(pool: PoolClient, calls: int) -> None:
    """Have the first calls find no server."""
    replayer.PAUSE_S = 0.0
    names, left = pool.names, iter(range(calls))

    def later() -> list[str]:
        if next(left, None) is not None:
            raise DeadlineExceeded("nobody listens there")
        return names()

    vars(pool)["names"] = later


def main() -> None:
    """Train, and write what this process saw."""
    given = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    engine = Engine() if given.get("engine") else None
    with PoolClient(given["address"], pool=given["pool"]) as pool:
        if rank == 0:
            keep_away(pool, given.get("late", 0))
        done = trained(Path(given["output"]), TrlReplay(pool, **given["replay"]), engine=engine, **given["given"])
    first = {step: rank * len(prompts) for step, prompts in done.prompts.items()}
    drawn = {step: [(first[step] + row, name) for row, name in rows] for step, rows in done.drawn.items()}
    seen = {"drawn": drawn, "prompts": done.prompts, "log": done.log, "calls": engine.calls if engine else []}
    Path(given["output"], f"rank-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
