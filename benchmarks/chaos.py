"""A real run with live replay, while every kind of process is killed, stopped, scaled and continued: is its history right?

    python benchmarks/chaos.py [--minutes 30] [--seed N] [--json FILE] [--set KEY=VALUE]

The run is ``rlep train`` on the quickstart's task, with its own successes replayed and a checkpoint every five steps. A fault is
drawn from ``Chaos.faults`` by the seed, at a moment that is drawn too. A run that ends is begun again by the same command.
Then the same run is made without faults, and both histories are checked (``parts/history.py``): every step once, every
question with its responses, all of the step's own policy, no replay that was not seen correct before. Steps of both are
compared as well. Exit status 1 where a history is wrong, a command makes no step within ``PATIENCE_S`` or ends with a stack
trace instead of a sentence, or ``MOST_ENDS`` commands in a row end without one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyarrow import parquet

from rlep.core.jsonl import read_lines
from rlep.quickstart.task import build_task

if TYPE_CHECKING:
    from benchmarks.parts.history import faults_of, first_difference, read_steps
    from benchmarks.parts.marked import marked
else:
    from parts.history import faults_of, first_difference, read_steps
    from parts.marked import marked

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "rlep" / "quickstart" / "base.toml"
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
PROMPTS, FRESH, REPLAYS, MOST, EVERY = 16, 8, 2, 2, 5
QUESTIONS = 3 * PROMPTS
"""So that a question comes again, with replays, every third step."""
PATIENCE_S, COMMAND_S = 600.0, 300.0
MOST_ENDS = 9
"""Commands in a row that may end by a sentence without a step: on a busy machine Ray's node is not up in its 30 s."""
MARK = "RLEP_CHAOS"
PROCESSES = {  # what is killed and stopped, by a part of its command line
    "generator": "ray::GeneratorActor",
    "engine": "VLLM::EngineCore",
    "verifier": "ray::VerifierActor",
    "verifier worker": "rlep.services.verifier.worker",
    "learner": "ray::LearnerActor",
    "pool": "ray::PoolActor",
    "control": "ray::ControlActor",
    "redis": "redis-server",
    "raylet": "raylet/raylet",
    "head": "gcs/gcs_server",
}
FROZEN = ("generator", "engine", "verifier", "learner", "pool", "redis", "raylet")
"""Those that stop for good; a head that hangs is what Ray itself waits some minutes for."""
PAUSE_S = 5.0
"""Of a process that is stopped and goes on."""
ENDED = {-signal.SIGKILL, 130, 143, 0, 1}
"""Exit statuses of a run: killed, interrupted, terminated, finished, ended by one sentence."""


class ChaosError(Exception):
    """What must never happen."""


class Run:
    """One run directory, and the command that makes or continues it."""

    def __init__(self, home: Path, name: str, task: Sequence[str]) -> None:
        self.directory, self.output = home / name, home / f"{name}.txt"
        settings = [
            *task,
            *(f'run.directory="{self.directory}"', "run.name=chaos", f'pool.directory="{home / name}-pool"'),
            *("run.steps=100000", "evaluation.every=0", f"checkpoint.every={EVERY}", "checkpoint.keep=3"),
            *(f"rollout.prompts={PROMPTS}", f"rollout.fresh={FRESH}", "update.prompts=8", "rollouts.keep_gib=1"),
            *(f"replay.count={REPLAYS}", "replay.source=live", "generator.max_sequences=64", "cluster.cpus=8"),
            *("generator.lease_s=60", "generator.heartbeat_timeout_s=30", "learner.heartbeat_timeout_s=30"),
            *("verifier.cpus=0.25", "generator.restarts=100", "verifier.restarts=100", "learner.restarts=100"),
        ]
        self.command = ["train", str(CONFIG), *(word for text in settings for word in ("--set", text)), "--quiet"]
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0

    def begin(self) -> None:
        """Start or continue it."""
        self.began = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as file:
            words = [sys.executable, "-m", "rlep", *self.command]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def steps(self) -> int:
        """Steps recorded so far; after a resume fewer than before."""
        metrics = self.directory / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def ended(self) -> int | None:
        """Its exit status; None while it runs. Raises where it did not end as a run may."""
        assert self.process is not None
        status = self.process.poll()
        if status is not None:
            said = self.output.read_bytes()[self.began :].decode(errors="replace")
            explained = status != 1 or any(line.startswith("error: ") for line in said.splitlines())
            if status not in ENDED or not explained or "Traceback (most recent call last)" in said:
                raise ChaosError(f"the run ended with {status}: {said[-3000:]}")
        return status

    def last_words(self) -> str:
        """The last line it printed."""
        lines = self.output.read_bytes()[self.began :].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def wait(self, seconds: float) -> int:
        """Its exit status, within so many seconds."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChaosError(f"the run did not end within {seconds:.0f} s") from None


class Chaos:
    """Brings faults about, by a seed."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)
        self.done: list[tuple[int, str]] = []
        self.said: Counter[str] = Counter()
        self.faults: dict[str, Callable[[], object]] = {
            **{f"kill {kind}": partial(self.send, kind, signal.SIGKILL) for kind in PROCESSES},
            **{f"pause {kind}": partial(self.pause, kind) for kind in PROCESSES},
            **{f"freeze {kind}": partial(self.send, kind, signal.SIGSTOP) for kind in FROZEN},
            **{f"full disk, {kind}": partial(self.fill, kind) for kind in ("learner", "generator")},
            "kill driver": partial(self.end, signal.SIGKILL),
            "interrupt driver": partial(self.end, signal.SIGINT),
            "terminate driver": partial(self.end, signal.SIGTERM),
            "second driver": self.second,
            "damaged checkpoint": self.damage,
            "half a line of metrics": self.tear,
            "scale generators": partial(self.scale, "generators"),
            "scale verifiers": partial(self.scale, "verifiers"),
            "drain generator": partial(self.drain, "generator"),
            "drain verifier": partial(self.drain, "verifier"),
        }

    def go_on(self, minutes: float) -> None:
        """Disturb the run for so long, then let it record a step and end it in order."""
        until = time.monotonic() + 60 * minutes
        self.run.begin()
        self.see_steps(2)
        while time.monotonic() < until:
            name = self.random.choice(sorted(self.faults))
            time.sleep(self.random.uniform(0, 3))
            print(f"step {self.run.steps()}: {name}", flush=True)
            self.done.append((self.run.steps(), name))
            self.faults[name]()
            self.see_steps(self.random.randint(1, 3))
        self.end(signal.SIGINT, again=False)

    def see_steps(self, steps: int) -> None:
        """Wait until the run has recorded so many more lines; one that ended is begun again, some times."""
        until, seen, last, ends = time.monotonic() + PATIENCE_S, 0, self.run.steps(), 0
        while seen < steps:
            if (now := self.run.steps()) != last:
                seen, last, until, ends = seen + max(0, now - last), now, time.monotonic() + PATIENCE_S, 0
            if self.run.ended() is not None:
                self.said[self.run.last_words()[:160]] += 1
                ends, until = ends + 1, time.monotonic() + PATIENCE_S
                if ends > MOST_ENDS:
                    raise ChaosError(f"{ends} commands made no step, the last: {self.run.last_words()}")
                self.run.begin()
            if time.monotonic() > until:
                raise ChaosError(f"no step within {PATIENCE_S:.0f} s after {self.done[-1:]}")
            time.sleep(0.1)

    def processes(self, kind: str) -> list[psutil.Process]:
        """Those of this run, by what they are."""
        return [one for one in marked(MARK) if PROCESSES[kind] in " ".join(one.cmdline())]

    def send(self, kind: str, number: signal.Signals) -> psutil.Process | None:
        """Send a signal to one of a kind, if there is one."""
        found = self.processes(kind)
        if not found:
            return None
        victim = self.random.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
        return victim

    def pause(self, kind: str) -> None:
        """Stop one for some seconds."""
        victim = self.send(kind, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        if victim is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)

    def fill(self, kind: str) -> None:
        """From now on one of a kind can write no file beyond 4 kB; the next process can."""
        if found := self.processes(kind):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.random.choice(found).rlimit(psutil.RLIMIT_FSIZE, (4096, 4096))

    def end(self, number: signal.Signals, *, again: bool = True) -> None:
        """End the driver by a signal, and continue the run."""
        assert self.run.process is not None
        self.run.process.send_signal(number)
        self.run.wait(COMMAND_S)
        self.run.ended()
        if again:
            self.run.begin()

    def second(self) -> None:
        """Another driver of the same directory is refused by one sentence."""
        words = [sys.executable, "-m", "rlep", *self.run.command]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if not ended.returncode or "already running" not in ended.stderr:
            raise ChaosError(
                f"a second driver ended with {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-1500:]}"
            )

    def damage(self) -> None:
        """Flip a bit of the newest checkpoint's largest file while the driver is away."""
        self.end(signal.SIGKILL, again=False)
        checkpoints = sorted((self.run.directory / "checkpoints").glob("step-??????"))
        if len(checkpoints) > 1:
            file = max((one for one in checkpoints[-1].rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
            content = bytearray(file.read_bytes())
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
            file.write_bytes(content)
        self.run.begin()

    def tear(self) -> None:
        """Leave half a line behind, as a driver that was killed within a write."""
        self.end(signal.SIGKILL, again=False)
        with (self.run.directory / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 12, "metr')
        self.run.begin()

    def scale(self, role: str) -> None:
        """As a user would."""
        self.command_at("scale", role, str(self.random.randint(1, MOST)))

    def drain(self, role: str) -> None:
        """One that the events say has started, if it is still there."""
        events = read_lines(self.run.directory / "events.jsonl")
        names = sorted({one["actor"] for one in events if str(one.get("actor")).startswith(f"{role}-")})
        self.command_at("drain", self.random.choice(names or [f"{role}-0"]))

    def command_at(self, *words: str) -> None:
        """Tell the run something; what is said of a run that is just ending, or has no such actor, is no fault."""
        command = [sys.executable, "-m", "rlep", *words, "--run", str(self.run.directory), "--grace", "20"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if "Traceback" in ended.stderr:
            raise ChaosError(f"rlep {' '.join(words)}: {ended.stderr[-3000:]}")


def undisturbed(run: Run, steps: int) -> None:
    """Make the same run without faults, until it has as many steps."""
    run.begin()
    until = time.monotonic() + PATIENCE_S
    while run.steps() < steps:
        if run.ended() is not None or time.monotonic() > until + 5 * steps:
            raise ChaosError(f"the run without faults stopped: {run.last_words()}")
        time.sleep(0.2)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    run.wait(COMMAND_S)


def figures(chaos: Chaos, plain: Run) -> dict[str, Any]:
    """What was seen, and what was wrong."""
    shape = {"prompts": PROMPTS, "fresh": FRESH, "most_replays": REPLAYS}
    histories = [read_steps(run.directory / "rollouts") for run in (chaos.run, plain)]
    broken = [
        f"{name}: {line}"
        for name, one in zip(("faults", "plain"), histories, strict=True)
        for line in faults_of(one, **shape)
    ]
    lines = [line["step"] for line in read_lines(chaos.run.directory / "metrics.jsonl")]
    if lines != list(range(len(lines))):
        broken.append(f"metrics.jsonl has the steps {lines}")
    events = Counter(line["event"] for line in read_lines(chaos.run.directory / "events.jsonl"))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "steps": len(lines),
        "trajectories": sum(map(len, histories[0].values())),
        "replays": sum(row["replayed"] for rows in histories[0].values() for row in rows),
        "faults": dict(sorted(Counter(name for _, name in chaos.done).items())),
        "ended with": dict(chaos.said),
        "events": {
            name: events[name]
            for name in ("actor_lost", "actor_restarted", "actor_drained", "run_resumed", "checkpoint_refused")
        },
        "first difference": first_difference(*histories),
        "broken": broken,
    }


def main() -> None:
    """Make both runs, check them, write the figures; the last line is a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, help="of the faults; printed, drawn by the clock where none is given")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where figures are written")
    parser.add_argument("--set", action="append", default=[], help="an override of both runs, such as learner.gpus=1")
    arguments = parser.parse_args()
    seed = time.time_ns() % 2**31 if arguments.seed is None else arguments.seed
    os.environ[MARK] = f"{os.getpid()}-{time.time_ns()}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the runs are ended then, too
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rlep-chaos-") as home:
        task, questions = build_task(Path(home) / "task"), Path(home) / "questions.parquet"
        parquet.write_table(parquet.read_table(task.train).slice(0, QUESTIONS), questions)
        settings = [f'model.path="{task.model_dir}"', f'data.train="{questions}"', "data.evaluation=[]", *arguments.set]
        chaos, plain = Chaos(Run(Path(home), "faults", settings), seed), Run(Path(home), "plain", settings)
        try:
            chaos.go_on(arguments.minutes)
            undisturbed(plain, chaos.run.steps())
            found: dict[str, Any] = {"seed": seed, "minutes": arguments.minutes, **figures(chaos, plain)}
        except ChaosError as error:
            print(f"broken: seed {seed}, {len(chaos.done)} faults, last {chaos.done[-3:]}: {error}")
            sys.exit(1)
        finally:
            for process in list(marked(MARK)):
                with contextlib.suppress(psutil.Error):
                    process.kill()
    arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    for line in found["broken"]:
        print(f"broken: {line}")
    print(json.dumps(found))
    sys.exit(1 if found["broken"] else 0)


if __name__ == "__main__":
    main()
