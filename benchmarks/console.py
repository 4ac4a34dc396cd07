"""What the console's pages take, with 1,000 runs of 10,000 steps and a pool of a million responses.

``python benchmarks/console.py [--json] [--out FILE]``, about two minutes on two cores. ``rlep console`` runs as a user
starts it, and is asked over HTTP. Every run has its own configuration and events; the metrics of 10,000 steps, 33 MB, are one
file with 1,000 names, so that they are in the page cache: what a cold disk adds is not measured. The responses of the pool
have 100 tokens, 20 to a question.

Each figure is ``[seconds, processor seconds of the console]``, since the machine is rarely idle; medians, but for the first:

* ``index_cold``: the list of runs, asked for the first time (goal 1 s); ``index``: again, when one run has changed (0.2 s);
* ``run_cold``: the page of a run, asked for the first time (goal 0.5 s); ``run``: after one more step;
* ``actors``: the page of its actors;
* ``pool``: the page of the pool (goal 0.3 s); ``pool_prompt``: of one of its questions;
* ``event``: from a line on disk to the event that makes a browser ask again, the slowest of twenty (goal 1 s at p95);
* ``core_20_tabs``: share of a core that twenty open pages take while nothing changes (goal 0.05);
* ``resident_mb``: most memory, with 32 runs looked at (goal 400).

``--training`` measures instead what an open page costs a run beside it, in a quarter of an hour on two idle cores:
``ratio`` is that of the median times of a step with and without it (goal 1.005), ``interval`` its 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlep.config.schema import Config
from rlep.core.types import Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.storage.codec import encode
from rlep.services.pool.storage.store import NewRecord
from rlep.services.pool.values import PoolOptions
from rlep.view.run_page import SECTIONS

if TYPE_CHECKING:
    from benchmarks.parts.beside_training import cost_beside_training
    from benchmarks.parts.console_process import Client, Figure, console
else:
    from parts.beside_training import cost_beside_training
    from parts.console_process import Client, Figure, console

RUNS, STEPS, NAMES, LOOKED_AT = 1000, 10_000, 101, 32
QUESTIONS, RESPONSES, TOKENS = 50_000, 20, 100
TABS, QUIET_S, TIMES, EVENTS = 20, 10.0, 7, 20
BLOCKS = 16


def line_of(step: int) -> str:
    """A line of ``metrics.jsonl``, about 3.3 kB."""
    names = [name for charts in SECTIONS.values() for _, several in charts for name in several]
    names += [f"update/something/{number}" for number in range(NAMES - len(names))]
    values = {name: round((step * 7919 + at) % 1000 / 999, 6) for at, name in enumerate(names)}
    return json.dumps({"step": step, "time": 1.0e9 + step, "wall_s": 10.0 * step, "metrics": values}) + "\n"


def write_runs(home: Path) -> None:
    """All runs; the first ``LOOKED_AT`` have metrics of their own."""
    whole = "".join(map(line_of, range(STEPS)))
    (home / "metrics.jsonl").write_text(whole)
    for number in range(RUNS):
        run = home / "runs" / f"{number:04d}"
        run.mkdir(parents=True)
        config = Config.model_validate({"run": {"name": f"run-{number}", "directory": str(run), "steps": 2 * STEPS}})
        (run / "config.json").write_text(config.model_dump_json(indent=2))
        (run / "manifest.json").write_text(json.dumps({"command": "train"}))
        (run / "events.jsonl").write_text(json.dumps({"time": 1.0e9, "event": "run_started", "step": None}) + "\n")
        if number < LOOKED_AT:
            (run / "metrics.jsonl").write_text(whole)
        else:
            (run / "metrics.jsonl").hardlink_to(home / "metrics.jsonl")


def fill(server: EmbeddedRedis) -> None:
    """A million responses. Of the tokens there is one set: no page compares them."""
    tokens, logprobs = np.arange(TOKENS, dtype=np.int32) * 37 % 50_000, np.full(TOKENS, -0.5, np.float32)
    origin = Provenance("policy", 3, "tokenizer", Sampling())
    one = Trajectory("q", tokens, logprobs, "stop", Verdict("correct", "42", "math", "1"), origin, 1.0e9, "train/3/q/1")
    record = encode(one)
    options = PoolOptions(cap=RESPONSES)
    with Pool.open(
        server.url, "large", tokenizer_digest="tokenizer", password_file=server.password_file, options=options
    ) as pool:
        for first in range(0, QUESTIONS, 25):
            names = [(f"{number:032x}", number) for number in range(first, first + 25)]
            pool.add_entries(
                [
                    NewRecord(name, (number * RESPONSES + k).to_bytes(16), "policy@3\nmath@1", record)
                    for name, number in names
                    for k in range(RESPONSES)
                ]
            )


def events(client: Client, run: Path) -> float:
    """Seconds from a line on disk to its event, the slowest of some."""
    lines = client.open(f"/runs/runs~{run.name}/live")
    next(lines)
    taken = []
    for number in range(EVENTS):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(line_of(STEPS + 100 + number))
        begun = time.perf_counter()
        while not next(lines).startswith(b"event: changed"):
            pass
        taken.append(time.perf_counter() - begun)
    return max(taken)


def quiet_tabs(client: Client) -> float:
    """Share of a core that open pages take while nothing changes."""
    with ExitStack() as stack:
        for number in range(TABS):
            lines = client.open(f"/runs/runs~{number:04d}/live")
            stack.callback(lines.close)  # type: ignore[attr-defined]
            next(lines)
        busy = client.busy()
        threading.Event().wait(QUIET_S)
        return (client.busy() - busy) / QUIET_S


def median(figures: Sequence[Figure]) -> Figure:
    """Of each column."""
    return [round(statistics.median(column), 3) for column in zip(*figures, strict=True)]


def measure(home: Path) -> dict[str, object]:
    """All figures."""
    write_runs(home)
    with EmbeddedRedis(home / "pool") as server:
        fill(server)
        with console(home / "runs", "--pool", home / "pool") as client:
            first = home / "runs" / "0000"

            def grown(path: str) -> Callable[[], Figure]:
                def asked() -> Figure:
                    with (first / "metrics.jsonl").open("a") as file:
                        file.write(line_of(STEPS))
                    return client.ask(path)

                return asked

            found: dict[str, object] = {"index_cold": median([client.ask("/")])}
            found["index"] = median([grown("/")() for _ in range(TIMES)])
            found["run_cold"] = median([client.ask(f"/runs/runs~{number:04d}") for number in range(1, LOOKED_AT)])
            found["run"] = median([grown("/runs/runs~0000")() for _ in range(TIMES)])
            found["actors"] = median([client.ask("/runs/runs~0000/actors") for _ in range(TIMES)])
            found["pool"] = median([client.ask("/pools/0/large") for _ in range(TIMES)])
            prompt = f"/pools/0/large/prompts/{7:032x}"
            found["pool_prompt"] = median([client.ask(prompt) for _ in range(TIMES)])
            found["event"] = round(events(client, first), 3)
            found["core_20_tabs"] = round(quiet_tabs(client), 3)
            return found | {"resident_mb": round(client.resident())}


def main() -> None:
    """Print the figures; the last line is one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of an indented object")
    parser.add_argument("--out", type=Path, help="also write them to this file, with the machine's description")
    parser.add_argument("--training", action="store_true", help="what an open page costs a run; nothing else")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="blocks of steps of --training, a multiple of four")
    chosen = parser.parse_args()
    if chosen.blocks < 4 or chosen.blocks % 4:
        parser.error("--blocks is a multiple of four")
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as home:
        figures = cost_beside_training(Path(home), chosen.blocks) if chosen.training else measure(Path(home))
    print(json.dumps(figures, indent=None if chosen.json else 2))
    if chosen.out:
        chosen.out.write_text(json.dumps({"machine": machine} | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
