"""Figures of ``scripts/gpu_day.sh``: reads what its stages wrote, writes gpu_day.json, prints the tables.

``python scripts/gpu_day_table.py DIRECTORY``. Nothing is measured here: seconds and exit status are the shell's, findings those
of ``rlep check --json``, the figures of a run stand in its metrics.jsonl and rollouts/, those of the benchmarks in their JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow import parquet

from rlep.core.jsonl import read_lines
from rlep.core.plural import sized

PHASES = ("generate", "verify", "replay", "score", "update", "publish", "checkpoint")


def run_figures(directory: Path) -> dict[str, Any]:
    """Medians over the steps of a run but the first, in which code is compiled; log-prob differences and memory over all."""
    metrics = [line["metrics"] for line in read_lines(directory / "metrics.jsonl")]
    later = metrics[1:] or metrics
    figures: dict[str, Any] = {"steps": len(metrics)}
    for key in (
        *(f"time/{phase}" for phase in PHASES),
        "time/step",
        "update/tokens_per_second",
        "update/flop_utilization",
    ):
        if values := [line[key] for line in later if line.get(key) is not None]:
            figures[key] = statistics.median(values)
    peaks = [line["update/peak_memory"] for line in metrics if line.get("update/peak_memory")]
    figures["peak_allocated"] = max(peaks, default=None)
    probes = [
        line["weights/logprob_difference"] for line in metrics if line.get("weights/logprob_difference") is not None
    ]
    figures["published_logprob_largest"] = max(probes, default=None)
    return figures | _gaps(directory)


def _gaps(directory: Path) -> dict[str, Any]:
    """Mean and largest difference, over all fresh tokens, of the sampler's log-probs and the learner's."""
    total, tokens, largest = 0.0, 0, 0.0
    for file in sorted((directory / "rollouts").glob("step-??????.parquet")):
        for row in parquet.read_table(file, columns=["replayed", "tokens", "gap_mean", "gap_max"]).to_pylist():
            if not row["replayed"] and row["gap_mean"] is not None:
                total, tokens = total + row["gap_mean"] * row["tokens"], tokens + row["tokens"]
                largest = max(largest, row["gap_max"])
    return {"logprob_mean": total / tokens, "logprob_largest": largest} if tokens else {}


def collected(home: Path) -> dict[str, Any]:
    """Everything that the stages of a day left in ``home``; of a stage that was made again the last time counts."""
    stages = {line["stage"]: line for line in read_lines(home / "stages.jsonl")}
    found: dict[str, Any] = {"stages": list(stages.values())}
    for name, line in stages.items():
        if (home / name / "metrics.jsonl").is_file():
            line.update(run_figures(home / name))
    check = home / "check.json"
    found["check"] = json.loads(check.read_text())["findings"] if check.is_file() and check.stat().st_size else []
    found["speed"] = list(_objects(home / "speed.jsonl"))
    found["memory"] = [json.loads(file.read_text()) for file in sorted(home.glob("memory-*.json"))]
    faults = home / "faults.json"
    return found | ({"faults": json.loads(faults.read_text())} if faults.is_file() else {})


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.is_file() else ():
        if line.startswith("{"):
            yield json.loads(line)


def tables(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines: the stages, the phases of a step, and what check and benchmarks said."""
    columns = ("stage", "result", "seconds", "peak allocated", "log-prob difference, mean", "largest")
    rows = [
        [
            line["stage"],
            "ok" if line["status"] == 0 else f"failed ({line['status']})",
            f"{line['seconds']:,}",
            "" if line.get("peak_allocated") is None else sized(int(line["peak_allocated"])),
            *("" if line.get(key) is None else f"{line[key]:.4f}" for key in ("logprob_mean", "logprob_largest")),
        ]
        for line in found["stages"]
    ]
    yield from _table(columns, rows)
    for line in found["stages"]:
        phases = [(phase, line[f"time/{phase}"]) for phase in (*PHASES, "step") if f"time/{phase}" in line]
        if phases:
            yield f"\nA step of {line['stage']}, medians:\n"
            yield from _table(("phase", "s"), [[phase, f"{seconds:.2f}"] for phase, seconds in phases])
    for finding in found["check"]:
        yield f"{finding['level']:8}{finding['what']}: {finding['detail']}"
    for name in ("speed", "memory"):
        yield from (f"{name}: {json.dumps(line)}" for line in found[name])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    home = parser.parse_args().directory
    found = collected(home)
    (home / "gpu_day.json").write_text(json.dumps(found, indent=2) + "\n")
    sys.stdout.writelines(f"{line}\n" for line in tables(found))


if __name__ == "__main__":
    main()
