"""Speed and size of the experience pool, against as many bytes over a TCP connection on loopback.

    python benchmarks/pool.py [--trajectories 200000] [--repetitions 40] [--binary redis-server] [--json FILE]

Synthetic responses of 830 tokens on average over 17,000 prompts, compressible like prose and formulas under a byte-pair
tokenizer (about 1.5 bytes a token, 240 different ones in 830); 4,096 different ones, stored again and again under other
content ids. A sample asks for 2 responses of each of 512 prompts. Rows alternate; a ratio is one of their medians, and the
spread of both is given in milliseconds (10th percentile, median, 90th percentile).

* ``tcp``: the bytes of a sample's columns, asked of another process and received into fresh memory;
* ``sample_redis``: ``Pool.sample``; ``grpc_redis``: ``PoolClient.sample`` of a server process; ``ray_redis``: of an actor;
* ``draw``: the choice of 512 × 2 alone, of prompts whose keys and counts are at hand; ``draw_looked_up``: with their
  look-up in the index; both measured apart, as nothing else passes through the processor's caches between them;
* ``insert``: ``Store.insert`` of 64 records (atomic, idempotent, in the append-only file when it returns) beside ``hsetnx``, a
  plain pipeline of 64 HSETNX of the same records;
* ``growth``: ``sample_redis`` of a pool five times as large beside one half as large;
* ``bytes``: growth of Redis' used memory per trajectory, with all keys, and the encoded record alone.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlep import PoolClient
from rlep.actors.cluster import Cluster
from rlep.config.roles import ClusterConfig
from rlep.core.draws import draw_uniform_keyed, prompt_keys
from rlep.core.heap import keep_freed_memory
from rlep.core.types import Float64Array, Int32Array, Int64Array, Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool, entry_of
from rlep.services.pool.storage.codec import encode
from rlep.services.pool.storage.connection import connect
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.storage.store import NewRecord
from rlep.services.pool.values import PoolOptions

RESULTS = Path(__file__).parent / "results" / "pool.json"
PROMPTS, MEAN_TOKENS, VOCABULARY, WORDS = 17_000, 830, 151_936, 20_000
DIFFERENT, ASKED, COUNT, INSERTED, BATCH = 4096, 512, 2, 64, 512
TOKENIZER, CAP, QUANTILES = "0123456789abcdef0123456789abcdef", 100_000, (0.1, 0.5, 0.9)
NAMES = [hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest() for number in range(PROMPTS)]
Work = Callable[[], object]
Verb = Callable[..., Sample]
Times = dict[str, list[float]]


def main() -> None:
    """Run all rows and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=200_000)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--binary", type=Path, help="the Redis program; by default the one that rlep itself takes")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(Path(home) / "redis", arguments)
        with bench.server:
            figures = {"machine": machine, **{name: vars(arguments)[name] for name in ("trajectories", "repetitions")}}
            figures |= bench.sizes()
            times = bench.samples() | bench.inserts() | bench.growth()
    figures |= {"sample_bytes": bench.sample_bytes} | ratios(times)
    print(json.dumps(figures, indent=2))
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def ratios(times: Times) -> dict[str, Any]:
    """The rows of the table, then the times behind them."""
    median = {name: float(np.median(values)) for name, values in times.items()}
    table = {f"{row}_over_tcp": row for row in median if row.startswith(("sample_", "ray_", "grpc_"))}
    return {
        **{name: round(median[row] / median["tcp"], 2) for name, row in table.items()},
        **{f"{row}_ms": round(1e3 * median[row], 3) for row in ("draw", "draw_looked_up")},
        "insert_over_hsetnx": round(median["hsetnx"] / median["insert"], 2),
        "growth_times_10": round(median["large"] / median["small"], 2),
        "milliseconds": {
            row: [round(1e3 * float(q), 3) for q in np.quantile(ts, QUANTILES)] for row, ts in times.items()
        },
    }


def alternately(rows: Mapping[str, Work], repetitions: int, before: Work = lambda: None) -> Times:
    """Seconds of each repetition of each row; the first round is not counted."""
    times: Times = {name: [] for name in rows}
    for repetition in range(repetitions + 1):
        before()
        for name, work in rows.items():
            started = time.perf_counter()
            work()
            if repetition:
                times[name].append(time.perf_counter() - started)
    return times


class Bench:
    """One server, its pools, and the rows measured on them."""

    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        self.server = EmbeddedRedis(directory, arguments.binary)
        self.directory = directory
        self.trajectories: int = arguments.trajectories
        self.repetitions: int = arguments.repetitions
        self.responses = Responses()
        self.draw = random.Random(0)

    def open(self, name: str = "pool") -> Pool:
        return Pool.open(
            self.server.url,
            name,
            tokenizer_digest=TOKENIZER,
            password_file=self.server.password_file,
            options=PoolOptions(cap=CAP),
        )

    def fill(self, pool: Pool, count: int) -> None:
        for start in range(0, count, BATCH):
            pool.store.insert(self.responses.entries(min(BATCH, count - start)), cap=CAP, writer="main", epoch=None)

    def sizes(self) -> dict[str, Any]:
        """Fill the first pool; what a trajectory takes."""
        with connect(self.server.url, password_file=self.server.password_file) as client, self.open() as pool:
            version, before = client.info("server")["redis_version"], client.info("memory")["used_memory"]
            self.fill(pool, self.trajectories)
            took = (client.info("memory")["used_memory"] - before) / self.trajectories
            encoded = pool.stats().bytes / self.trajectories - 4  # without the label's number
        return {
            "redis": version,
            "bytes_per_trajectory": round(took),
            "encoded_bytes": round(encoded),
            "bytes_over_encoded": round(took / encoded, 3),
        }

    def asked(self) -> list[str]:
        return self.draw.sample(NAMES, ASKED)

    def samples(self) -> Times:
        """Every path of a sample, beside its bytes over TCP."""
        steps, asked, same = itertools.count(), list[str](), self.asked()
        cluster = Cluster(ClusterConfig(cpus=2), "bench")
        with ExitStack() as stack:
            stack.callback(cluster.close)
            cluster.connect()
            pool = stack.enter_context(self.open())
            take = {
                "sample_redis": pool.sample,
                "grpc_redis": stack.enter_context(self.served()),
                "ray_redis": stack.enter_context(self.actor()),
            }
            rows: dict[str, Work] = {name: partial(sampled, verb, asked, steps) for name, verb in take.items()}
            whole = pool.sample(same, COUNT, seed=0, step=0)
            rows["tcp"] = stack.enter_context(transfer_of(size_of(whole)))
            times = alternately(rows, self.repetitions, lambda: asked.__setitem__(slice(None), self.asked()))
            keys, counts = prompt_keys(same), np.full(ASKED, 12)
            questions = itertools.cycle([self.asked() for _ in range(99)])
            draws: dict[str, Work] = {
                "draw": lambda: draw_uniform_keyed(keys, counts, COUNT, seed=0, step=next(steps)),
                "draw_looked_up": lambda: pool._index.draw(next(questions), COUNT, minimum=2, seed=0, step=next(steps)),
            }
            times |= alternately(draws, 10 * self.repetitions)
        self.sample_bytes = size_of(whole)
        return times

    @contextmanager
    def served(self) -> Iterator[Verb]:
        """A client's ``sample`` of a pool server in another process."""
        words = [sys.executable, "-m", "rlep", "pool", "serve", "--listen", "127.0.0.1:0", "--redis", self.server.url]
        environment = {**os.environ, "RLEP_REDIS_PASSWORD_FILE": str(self.server.password_file)}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        try:
            with PoolClient(process.stdout.readline().strip()) as client:
                yield client.sample
        finally:
            process.terminate()
            process.communicate()

    @contextmanager
    def actor(self) -> Iterator[Verb]:
        """``sample`` of an actor on the Ray that is connected."""
        import ray

        class Holder:
            def __init__(self, url: str, password_file: Path) -> None:
                keep_freed_memory()  # as the pool's own actor does
                options = PoolOptions(cap=CAP)
                self.pool = Pool.open(
                    url, "pool", tokenizer_digest=TOKENIZER, password_file=password_file, options=options
                )

            def sample(self, prompt_ids: list[str], count: int, seed: int, step: int) -> Sample:
                return self.pool.sample(prompt_ids, count, seed=seed, step=step)

        holder = ray.remote(num_cpus=0)(Holder).remote(self.server.url, self.server.password_file)
        yield lambda asked, count, *, seed, step: ray.get(holder.sample.remote(asked, count, seed, step), timeout=60)
        ray.kill(holder)

    def inserts(self) -> Times:
        """The store's insert beside a plain pipeline."""
        batch: list[NewRecord] = []

        def renew() -> None:
            batch[:] = self.responses.entries(INSERTED)

        with connect(self.server.url, password_file=self.server.password_file) as client, self.open() as pool:

            def plain() -> None:
                with client.pipeline(transaction=False) as pipeline:
                    for entry in batch:
                        pipeline.hsetnx(f"plain:{entry.prompt_id}", entry.content_id, entry.record)
                    pipeline.execute()

            rows = {"hsetnx": plain, "insert": lambda: pool.store.insert(batch, cap=CAP, writer="main", epoch=None)}
            return alternately(rows, 3 * self.repetitions, renew)

    def growth(self) -> Times:
        """A small pool beside one of ten times its size."""
        with self.open("small") as small, self.open("large") as large:
            self.fill(small, self.trajectories // 2)
            self.fill(large, self.trajectories * 5)
            steps = iter(range(10**9))
            rows = {
                "small": lambda: small.sample(self.asked(), COUNT, seed=0, step=next(steps)),
                "large": lambda: large.sample(self.asked(), COUNT, seed=0, step=next(steps)),
            }
            return alternately(rows, self.repetitions)


class Responses:
    """Synthetic responses, already encoded, under new content ids without end."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        weights = 1 / np.arange(1, WORDS + 1) ** 1.05  # Zipf
        frequency = np.cumsum(weights) / weights.sum()
        words = np.sort(generator.permutation(VOCABULARY)[:WORDS]).astype(np.int32)
        lengths = np.clip(generator.gamma(3, MEAN_TOKENS / 3, DIFFERENT), 16, 8192).astype(int).tolist()
        self._records = [_record(words[_spoken(generator, length, frequency)], generator) for length in lengths]
        self._numbers, self._draw = itertools.count(), random.Random(1)

    def entries(self, count: int) -> list[NewRecord]:
        """New responses of random prompts."""
        found = []
        for number in itertools.islice(self._numbers, count):
            label, record = self._draw.choice(self._records)
            content_id = hashlib.blake2b(b"%d" % number, digest_size=16).digest()
            found.append(NewRecord(self._draw.choice(NAMES), content_id, label, record))
        return found


def _record(tokens: Int32Array, generator: np.random.Generator) -> tuple[str, bytes]:
    """The label and the record of one response, its log-probs as of a confident policy."""
    trajectory = Trajectory(
        prompt_id=NAMES[0],
        tokens=tokens,
        logprobs=-generator.exponential(0.35, len(tokens)).astype(np.float32),
        finish_reason="stop",
        verdict=Verdict("correct", "42", "math", "1"),
        provenance=Provenance(TOKENIZER, 3, TOKENIZER, Sampling()),
        created_at=1.7e9,
        sample_id=f"train/3/{NAMES[0]}/1",
        metadata={},
    )
    record = encode(trajectory)
    return entry_of(trajectory, record).label, record


def _spoken(generator: np.random.Generator, length: int, frequency: Float64Array) -> Int64Array:
    """Ranks of words: runs of 2 to 8, half of them new (by frequency), half said before."""
    ranks = np.searchsorted(frequency, generator.random(length + 8))  # [length + 8]
    runs, where = generator.integers(2, 9, length).tolist(), generator.random(length).tolist()
    old, at = (generator.random(length) < 0.5).tolist(), 0
    for run, place, repeats in zip(runs, where, old, strict=True):
        if at >= length:
            break
        if repeats and at > 16:
            start = int(place * (at - run))
            ranks[at : at + run] = ranks[start : start + run]
        at += run
    return ranks[:length]


def sampled(verb: Verb, asked: list[str], steps: Iterator[int]) -> Sample:
    """One sample at a step of its own."""
    return verb(asked, COUNT, seed=0, step=next(steps))


def size_of(sample: Sample) -> int:
    """Bytes of a sample's columns."""
    columns = (sample.counts, sample.offsets, sample.tokens, sample.logprobs, sample.finished)
    return sum(column.nbytes for column in columns) + 16 * len(sample.ids) + sum(map(len, sample.details))


SENDER = """
import os, socket, sys
data = os.urandom(int(sys.argv[2]))
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    while connection.recv(1):
        connection.sendall(data)
"""


@contextmanager
def transfer_of(size: int) -> Iterator[Work]:
    """Asks a process for so many bytes over loopback and receives them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([sys.executable, "-c", SENDER, str(listener.getsockname()[1]), str(size)])
        receiver, _ = listener.accept()

    def transfer() -> None:
        view, got = memoryview(bytearray(size)), 0
        receiver.sendall(b"?")
        while got < size:
            got += receiver.recv_into(view[got:])

    with receiver:
        yield transfer
    process.wait(10)


if __name__ == "__main__":
    main()
