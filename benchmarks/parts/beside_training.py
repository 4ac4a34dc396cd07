"""What an open page of the console costs a training run beside it: blocks of steps with the page and without, in one run.

In a block with it a console is started, and a client does what a browser does: it holds the stream of changes, and asks for the
page again at each. In a block without it there is no console. Steps count that lie wholly within a block. The order is
without, with, with, without, so that steps which become longer favour neither.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlep.quickstart.task import build_task

from .console_process import Client, console

STEPS, FIRST = 12, 4
"""Whole steps of a block; steps before the first block."""
DRAWS = 2000
STEP_S = 600.0
"""Longest wait for a step."""
CONFIGS = Path(__file__).resolve().parents[2] / "rlep" / "quickstart"


@dataclass(frozen=True, slots=True)
class Block:
    """Some time of the run, in seconds since the epoch."""

    live: bool
    """A page was open all the time; or there was no console."""
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """A line of ``metrics.jsonl``: when it was written, and what the step took."""

    written: float
    seconds: float


def cost_beside_training(home: Path, blocks: int) -> dict[str, object]:
    """Run it; ``blocks`` is a multiple of four."""
    load, run = os.getloadavg()[0], home / "runs" / "beside"
    asked = 0
    done: list[Block] = []
    with training(home, run) as process:
        wait_for_steps(process, run, FIRST)
        for number in range(blocks):
            if number % 4 in (0, 3):
                begun = time.time()
                wait_for_steps(process, run, STEPS + 1)
                done.append(Block(False, begun, time.time()))
                continue
            with console(home / "runs") as client, followed(client, "/runs/runs~beside") as requests:
                begun = time.time()
                wait_for_steps(process, run, STEPS + 1)
                done.append(Block(True, begun, time.time()))
                asked += len(requests)
    return compared(steps_of(run), done) | {"pages": asked, "load_before": round(load, 2)}


def compared(steps: Sequence[StepTime], blocks: Sequence[Block]) -> dict[str, object]:
    """Median seconds of a step without and with the page, their ratio, and its 95 % interval by drawing blocks again."""
    parts = {live: [within(steps, block) for block in blocks if block.live is live] for live in (False, True)}
    plain, live = (float(np.median(np.concatenate(parts[kind]))) for kind in (False, True))
    draw = np.random.default_rng(0)
    ratios = [_drawn(parts[True], draw) / _drawn(parts[False], draw) for _ in range(DRAWS)]
    low, high = (float(end) for end in np.quantile(ratios, (0.025, 0.975)))
    return {
        "step_s": [round(plain, 4), round(live, 4)],
        "steps": [sum(map(len, parts[kind])) for kind in (False, True)],
        "ratio": round(live / plain, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


def _drawn(parts: Sequence[Sequence[float]], draw: np.random.Generator) -> float:
    return float(np.median(np.concatenate([parts[at] for at in draw.integers(len(parts), size=len(parts))])))


def within(steps: Sequence[StepTime], block: Block) -> list[float]:
    """Seconds of the steps that lie wholly in a block."""
    return [one.seconds for one in steps if one.written - one.seconds >= block.begun and one.written <= block.ended]


def steps_of(run: Path) -> list[StepTime]:
    """The complete lines of ``metrics.jsonl``."""
    text = (run / "metrics.jsonl").read_text().rpartition("\n")[0]
    lines = [json.loads(line) for line in text.splitlines()]
    return [StepTime(line["time"], line["metrics"]["time/step"]) for line in lines]


def wait_for_steps(process: subprocess.Popen[bytes], run: Path, more: int) -> None:
    """Until so many steps more are recorded. Raises ``AssertionError`` where the run ends or stands still."""
    held = wanted = None
    until = time.monotonic() + STEP_S
    while wanted is None or held is None or held < wanted:
        assert process.poll() is None, "the run ended"
        assert time.monotonic() < until, "the run stands still"
        now = len(steps_of(run)) if (run / "metrics.jsonl").exists() else 0
        wanted = now + more if wanted is None else wanted
        if now != held:
            held, until = now, time.monotonic() + STEP_S
        time.sleep(0.2)


@contextmanager
def followed(client: Client, page: str) -> Iterator[list[float]]:
    """A page that somebody looks at, for the time of the block, with the seconds that each of its answers took."""
    taken = [client.ask(page)[0]]
    lines = client.open(f"{page}/live")
    next(lines)

    def follow() -> None:
        try:
            for line in lines:
                if line.startswith(b"event: changed"):
                    taken.append(client.ask(page)[0])
        except (OSError, http.client.HTTPException):  # the console has ended
            return

    threading.Thread(target=follow, daemon=True).start()
    yield taken


@contextmanager
def training(home: Path, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The quickstart's run without replay and without evaluations, until the block ends."""
    task = build_task(home / "task")
    overrides = [f'model.path="{task.model_dir}"', f'data.train="{task.train}"', "data.evaluation=[]"]
    overrides += [f'run.directory="{run}"', "run.name=beside", "run.steps=100000", "checkpoint.every=100000"]
    files = [CONFIGS / "base.toml", CONFIGS / "phase1.toml"]
    command = [sys.executable, "-m", "rlep", "train", *map(str, files)]
    command += [word for text in overrides for word in ("--set", text)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STEP_S)
