"""A real run of 300 steps while generators and verifiers come, go and are killed from outside: does anything grow?

    python benchmarks/soak.py [--steps 300] [--seed 0] [--json FILE]

The run is ``rlep train`` on the quickstart's task (replay from an embedded Redis, streamed updates, a checkpoint every ten
steps). Beside it ``rlep scale`` and ``rlep drain`` bring generators and verifiers to 1 … 3, drawn from the
seed; about every fifth time one of them gets a ``kill -9`` instead. The last actors are as many as the first.

Every third step ``parts/census.py`` looks at all processes that the run has started, orphans included: memory (resident,
without what is shared; MiB), file descriptors and threads, of each kind the largest; entries and MiB in /dev/shm (those that
one of them ever had mapped, and Ray's store); Redis' keys; files of the run and of its private directory; the driver's
blocks of Python's memory, tasks and references. ``BOUNDS`` says by how much the median of the last third of the steps may be
above that of the second (the first warms up), ``LIMITS`` what no sample may exceed. At the end nothing may be left, and every
step must have been recorded once with all its samples. Exit status 1 where something is out of its bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlep.core.jsonl import read_lines
from rlep.quickstart.task import build_task

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "rlep" / "quickstart"
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
PARTS = ROOT / "benchmarks" / "parts"
PROMPTS, FRESH, REPLAYS, MOST = 32, 8, 2, 3
DISTURBED = 0.85
"""Share of the steps after which actors are brought back to their number."""
COMMAND_S, START_S = 900.0, 300.0
BOUNDS: dict[str, tuple[float, float]] = {  # how a series' name ends → by which share, and how much more, it may grow
    ".memory": (0.03, 8),
    ".fds": (0, 8),
    ".threads": (0, 8),
    "driver.blocks": (0.03, 0),
    "driver.tasks": (0, 8),
    "driver.references": (0, 16),
    "shm.entries": (0, 4),
    "shm.mib": (0, 16),
    "redis.keys": (0, 0),
    "redis.used": (0.01, 0.5),
    "run.files": (0, 2),
    "private.files": (0, 8),
    "processes": (0, 12),
}
UNBOUND = ("starting.", "log monitor.fds")
"""How the series begin that may grow."""
LIMITS = {
    "generator.count": MOST + 1,  # one more than there may be: the next one starts while a killed one is buried
    "verifier.count": MOST + 1,
    "learner.count": 1,
    "pool.count": 1,
    "redis.count": 1,
    "private.samplers": 2 * MOST,  # a killed generator's directory stays until the next one starts
    "log monitor.fds": 250,  # Ray's follows up to 200 files of actors, dead ones too
}


@dataclass
class Soak:
    """A run and what is done to it."""

    home: Path
    steps: int
    random: random.Random
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The run, and the census of it."""
    names: list[str] = field(default_factory=lambda: ["generator-0", "verifier-0"])
    done: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.home / "run"

    def overrides(self) -> list[str]:
        """The quickstart's task with small steps, and restarts for everybody who will be killed."""
        task = build_task(self.home / "task")
        return [
            *(f'model.path="{task.model_dir}"', f'data.train="{task.train}"', "data.evaluation=[]"),
            *(f'pool.directory="{self.home / "pool"}"', f'run.directory="{self.run}"', "run.name=soak"),
            *(f"run.steps={self.steps}", f"rollout.prompts={PROMPTS}", f"rollout.fresh={FRESH}", "update.prompts=8"),
            *("update.stream=true", "checkpoint.every=10", "collection.samples=8", f"replay.count={REPLAYS}"),
            *("cluster.cpus=8", "generator.max_sequences=64", "generator.restarts=1000", "verifier.restarts=1000"),
            *("generator.lease_s=60", "verifier.cpus=0.25"),
        ]

    def begin(self) -> None:
        """Fill the pool, then start the run and the census."""
        collect = [f'run.directory="{self.home / "collect"}"', "run.name=soak-collect", "replay.count=0"]
        self.command("collect", str(CONFIGS / "base.toml"), *sets([*self.overrides(), *collect]))
        command = [str(PARTS / "soak_run.py"), "train", str(CONFIGS / "base.toml"), *sets(self.overrides())]
        self.start(command, "output.txt", SOAK_INSIDE=str(self.home / "inside.jsonl"))
        self.start([str(PARTS / "census.py"), str(self.home), str(self.processes[0].pid)], "census.txt")

    def start(self, arguments: Sequence[str], output: str, **environment: str) -> None:
        """A Python process that goes on beside this one."""
        with (self.home / output).open("wb") as file:
            command, environ = [sys.executable, *arguments], os.environ | environment
            self.processes.append(
                subprocess.Popen(command, stdout=file, stderr=file, env=environ, start_new_session=True)
            )

    def step(self) -> int:
        """Steps recorded so far."""
        metrics = self.run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def wait_for(self, step: int) -> bool:
        """Wait until so many steps are recorded; False where the run ended before. Raises what it failed with."""
        until = time.monotonic() + START_S
        while self.step() < step:
            for process, output in zip(self.processes, ("output.txt", "census.txt"), strict=True):
                if process.poll():
                    raise RuntimeError((self.home / output).read_text()[-4000:])
            if self.processes[0].poll() == 0:
                return False
            if time.monotonic() > until:
                raise TimeoutError(f"no {step} steps within {START_S:.0f} s")
            time.sleep(0.1)
        return True

    def soak(self) -> None:
        """Disturb the run, then see it to its end."""
        step, last = 1, int(DISTURBED * self.steps)
        while self.wait_for(step) and step < last:
            self.disturb()
            step = self.step() + self.random.randint(1, 4)
        self.command("scale", "generators", "1", *self.about())
        self.command("scale", "verifiers", "1", *self.about())
        self.wait_for(self.steps + 1)
        for process in self.processes:
            process.wait(START_S)

    def disturb(self) -> None:
        """One change as a user would make it, or a kill."""
        kind = self.random.choice(("generator", "verifier"))
        what = self.random.choice(("scale", "scale", "scale", "drain", "kill"))
        there = [name for name in self.names if name.startswith(kind)]
        if what == "kill":
            self.kill(kind)
        elif what == "drain" and len(there) > 1:
            self.command("drain", self.random.choice(there), *self.about())
        else:
            what = "scale"
            self.command("scale", f"{kind}s", str(self.random.randint(1, MOST)), *self.about())
        self.done[f"{what} {kind}"] += 1

    def kill(self, kind: str) -> None:
        """``kill -9`` of one actor of this kind that the last line of the census knows, if it is still there."""
        pids = [line["pids"].get(kind, []) for line in self.census()[-1:]]
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            victim = psutil.Process(self.random.choice(pids[0]))
            if victim.cmdline() and victim.cmdline()[0].startswith("ray::"):
                victim.send_signal(signal.SIGKILL)

    def about(self) -> list[str]:
        """Which run, and how long who leaves may take."""
        return ["--run", str(self.run), "--grace", "20"]

    def command(self, *arguments: str) -> None:
        """One of rlep's commands; raises what it says where it fails while steps are left. Keeps the names that it prints."""
        command = [sys.executable, "-m", "rlep", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if done.returncode and self.step() < self.steps:
            raise RuntimeError(
                f"rlep {' '.join(arguments)}: {done.returncode}, {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        self.names = sorted(set(re.findall(r"(?:generator|verifier)-\d+", done.stdout))) or self.names

    def census(self) -> list[dict[str, Any]]:
        """Its lines so far."""
        lines = self.home / "census.jsonl"
        return read_lines(lines) if lines.exists() else []

    def close(self) -> None:
        """End what still runs."""
        if self.processes and self.processes[0].poll() is None:
            self.processes[0].send_signal(signal.SIGINT)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(90)
            process.kill()


def sets(overrides: Sequence[str]) -> list[str]:
    """``--set`` for each override."""
    return [part for text in overrides for part in ("--set", text)]


def judged(lines: Sequence[dict[str, Any]], steps: int) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each series, and what is out of its bounds."""
    rows, broken = [], []
    for name in sorted({name for line in lines for name in line} - {"step", "pids"}):
        values = [(line["step"], line[name]) for line in lines if name in line]
        first, second, last = (
            statistics.median([value for step, value in values if min(2, 3 * step // steps) == third] or [math.nan])
            for third in range(3)
        )
        row = {"first": first, "second": second, "last": last, "most": max(value for _, value in values)}
        rule = next((rule for end, rule in BOUNDS.items() if name.endswith(end)), None)
        if rule is not None and not name.startswith(UNBOUND):
            row["allowed"] = second * (1 + rule[0]) + rule[1]
            if last > row["allowed"]:
                broken.append(f"{name}: {last:.1f} in the last third, allowed are {row['allowed']:.1f}")
        if row["most"] > LIMITS.get(name, math.inf):
            broken.append(f"{name}: {row['most']:.0f}, allowed are {LIMITS[name]}")
        rows.append({"name": name, **{key: round(value, 2) for key, value in row.items() if not math.isnan(value)}})
    return rows, broken


def recorded(lines: Sequence[dict[str, Any]], steps: int) -> list[str]:
    """What is wrong with the run's own record: each step once, with all its samples."""
    found = [(line["step"], line["metrics"]["rollout/samples"]) for line in lines]
    missing = set(enumerate([PROMPTS * FRESH] * steps)) - set(found)
    return (
        [f"metrics.jsonl: {len(found)} lines, without {sorted(missing)[:3]}"] if missing or len(found) != steps else []
    )


def figures(soak: Soak) -> dict[str, Any]:
    """What was seen."""
    *lines, end = soak.census()
    rows, broken = judged(lines, soak.steps)
    metrics = read_lines(soak.run / "metrics.jsonl")
    events = Counter(line["event"] for line in read_lines(soak.run / "events.jsonl"))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "steps": len(metrics),
        "samples": len(lines),
        "seconds_per_step": round(statistics.median(line["metrics"]["time/step"] for line in metrics), 2),
        "done": dict(sorted(soak.done.items())),
        "events": {name: events[name] for name in ("actor_started", "actor_drained", "actor_lost", "actor_restarted")},
        "retried": sum(line["metrics"]["rollout/retried"] for line in metrics),
        "broken": [*broken, *(f"left: {name}" for name in end["left"]), *recorded(metrics, soak.steps)],
        "series": rows,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table for people."""
    columns = ("first", "second", "last", "allowed", "most")
    print(f"{'median by third of steps':26}" + "".join(f"{name:>12}" for name in columns))
    for row in rows:
        shown = (f"{row[name]:12.1f}" if name in row else " " * 12 for name in columns)
        print(f"{row['name']:26}" + "".join(shown))


def main() -> None:
    """Make the run, print the table, write the figures; the last line is a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the disturbances")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=RESULTS, default=RESULTS, help="where figures are written"
    )
    arguments = parser.parse_args()
    os.environ["RLEP_SOAK"] = f"{os.getpid()}-{time.time_ns()}"
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rlep-soak-") as home:
        soak = Soak(Path(home), arguments.steps, random.Random(arguments.seed))
        try:
            soak.begin()
            soak.soak()
        finally:
            soak.close()
        found = figures(soak)
    found["minutes"] = round((time.perf_counter() - begun) / 60, 1)
    show(found["series"])
    arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    for line in found["broken"]:
        print(f"broken: {line}")
    print(json.dumps({name: value for name, value in found.items() if name != "series"}))
    sys.exit(1 if found["broken"] else 0)


if __name__ == "__main__":
    main()
