"""Whole files through ``rlep grade``: expected verdicts whatever the workers, the order and the load; hostile ones too."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlep.services.verifier.verifier import Verifier
from rlep.services.worker.jail import Limits
from tests.services.verifier.verifier_hostile import HOSTILE

ROOT = Path(__file__).parents[3]
RESPONSES = Path(__file__).with_name("verifier_responses.jsonl")
ROWS: list[dict[str, Any]] = [json.loads(line) for line in RESPONSES.read_text(encoding="utf-8").splitlines()]
SYMBOLIC: list[dict[str, Any]] = [
    {"gold": gold, "response": f"\\boxed{{{answer}}}", "correct": correct}
    for gold, answer, correct in [
        ("x^2-1", "(x-1)(x+1)", True),
        ("\\sqrt{8}", "2\\sqrt{2}", True),
        ("(1,2]", "1<x\\le 2", True),
        ("\\frac{1}{3}", "0.\\overline{3}", True),
        ("\\cos 2x", "1-2\\sin^2 x", True),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", True),
        ("\\cos 2x", "2\\cos x", False),
        ("x^2", "x^3", False),
        ("42", "e^{e^{e^{e^{e}}}}", False),
    ]
]


def graded(rows: list[dict[str, Any]], directory: Path, *options: str) -> list[dict[str, Any]]:
    """What ``rlep grade`` makes of the rows."""
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "rlep", "grade", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert f"{len(rows)} graded" in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def overload(processes: int) -> Iterator[None]:
    """As many processes that want a whole core each."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_one_and_four_workers_say_the_same_in_any_order_and_what_is_expected(tmp_path: Path) -> None:
    rows = [{**row, "id": number} for number, row in enumerate(ROWS + SYMBOLIC)]
    one = graded(rows, tmp_path)
    mixed = random.Random(5).sample(rows, len(rows))
    four = graded(mixed, tmp_path, "--workers", "4")
    assert [row["id"] for row in four] == [row["id"] for row in mixed]
    assert [row["status"] for row in sorted(four, key=lambda row: int(row["id"]))] == [row["status"] for row in one]
    assert [row for row in one if (row["status"] == "correct") != row["correct"]] == []


def test_four_times_more_work_than_cores_changes_no_verdict(tmp_path: Path) -> None:
    cores = psutil.cpu_count() or 1
    free = graded(SYMBOLIC, tmp_path)
    with overload(4 * cores):
        loaded = graded(SYMBOLIC, tmp_path)
    assert [row["status"] for row in loaded] == [row["status"] for row in free]
    assert [row["status"] for row in free] == ["correct"] * 6 + ["wrong"] * 2 + ["timeout"]


@pytest.mark.timeout(600)
def test_hostile_answers_are_never_correct_and_the_job_behind_each_is_right() -> None:
    honest = [f"\\boxed{{{number}+x-{number - 1}}}" for number in range(len(HOSTILE))]
    pairs = [
        pair
        for (reference, hostile), fair in zip(HOSTILE, honest, strict=True)
        for pair in ((reference, hostile, False), ("x+1", fair, False))
    ]
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with Verifier(limits=Limits(cpu_seconds=0.25)) as verifier:
        memory = psutil.Process().memory_info().rss
        verdicts = [
            verdict for start in range(0, len(pairs), 32) for verdict in verifier.grade_pairs(pairs[start : start + 32])
        ]
        grown = psutil.Process().memory_info().rss - memory
    assert [pair for pair, verdict in zip(pairs[::2], verdicts[::2], strict=True) if verdict.status == "correct"] == []
    assert {verdict.status for verdict in verdicts[1::2]} == {"correct"}
    assert grown < 64 << 20
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
