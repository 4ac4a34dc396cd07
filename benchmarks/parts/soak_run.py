"""``rlep`` with its own arguments, and a thread that writes what its process holds into ``SOAK_INSIDE``, a JSON line a time.

``blocks``: of Python's memory; ``tasks``: of asyncio; ``references``: to objects and actors of Ray.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

import ray

from rlep.cli import app

EVERY_S = 2.0
loops: list[asyncio.AbstractEventLoop] = []
new_event_loop = asyncio.events.new_event_loop


def recorded() -> asyncio.AbstractEventLoop:
    """A new loop, remembered."""
    loops.append(new_event_loop())
    return loops[-1]


def look(out: Path) -> None:
    """Write lines until the process ends. ``gc.get_objects`` would disturb: tuples that are being built may have one owner."""
    while True:
        time.sleep(EVERY_S)
        if ray.is_initialized():
            line = {
                "blocks": sys.getallocatedblocks(),
                "tasks": sum(len(asyncio.all_tasks(loop)) for loop in loops),
                "references": len(ray._private.worker.global_worker.core_worker.get_all_reference_counts()),
            }
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")


asyncio.events.new_event_loop = recorded
threading.Thread(target=look, args=(Path(os.environ["SOAK_INSIDE"]),), daemon=True).start()
app()
