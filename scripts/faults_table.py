"""Generates docs/reference/faults.md from the ``fault`` markers of the tests, which are read and not imported.

``python scripts/faults_table.py`` writes the page; a contract test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "faults.md"
BEGIN = "<!-- faults: written by scripts/faults_table.py -->"
END = "<!-- end of faults -->"

FAULTS = {
    1: "a generator is killed",
    2: "a verifier is killed",
    3: "the pool's server is killed",
    4: "a learner rank is killed",
    5: "the driver is killed",
    6: "Ray's head process is killed",
    7: "a node with generators is lost",
    8: "a process hangs",
    9: "Redis is killed and starts again",
    10: "Redis stays away",
    11: "a disk is full",
    12: "Redis has no memory left",
    13: "Redis' file is cut or damaged",
    14: "Redis is slow",
    15: "a message comes twice, or out of order",
    16: "Ray's calls fail",
    17: "the clock jumps",
    18: "a response that a verifier never finishes",
    19: "a verifier runs out of memory",
    20: "a trajectory that is no use",
    21: "a gradient that is not finite",
    22: "a checkpoint is damaged",
    23: "a weight update stops half way",
    24: "the pool has too few responses to a question",
    25: "a tracker fails or hangs",
    26: "SIGTERM, Ctrl-C, a closed terminal, the end of a job",
    27: "generators come and go during a step",
    28: "a second driver of one run or one live pool",
    29: "all of these by chance, over a long run",
    30: "a bit is flipped in a file that is read again",
    31: "a node comes back under another address",
    32: "the node of a learner rank is lost",
    33: "the shared file system is slow or stale",
    34: "the network between learner and generators is cut in a weight update",
    35: "a spot instance is about to end",
    36: "Ray's process on the driver's node (raylet) is killed",
}
BENCHMARKS = {29: "`benchmarks/chaos.py`, in `make bench-soak`: nothing found in three runs of half an hour"}
"""Where a fault that no test brings about is tried by hand."""
OUTCOMES = {
    "equal": "equal to the undisturbed run",
    "stated": "goes on, and says what was lost or refused",
    "stopped": "stops with one sentence, and can be continued",
}


@dataclass(frozen=True, slots=True)
class FaultTest:
    """One marked test."""

    number: int
    outcome: str
    operator: str
    """What an operator sees of it."""
    test: str
    """``tests/…/file.py::name``"""


def marked_tests(root: Path = ROOT) -> list[FaultTest]:
    """Every test with a ``fault`` marker, by fault and place. Raises ``ValueError`` for a marker that means nothing."""
    found = [one for path in sorted((root / "tests").rglob("test_*.py")) for one in _marked(path, root)]
    return sorted(found, key=lambda one: (one.number, one.test))


def _marked(path: Path, root: Path) -> Iterator[FaultTest]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        place = f"{path.relative_to(root).as_posix()}::{node.name}"
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                yield _read(mark, place)


def _read(mark: ast.Call, place: str) -> FaultTest:
    numbers = [ast.literal_eval(value) for value in mark.args]
    words = {str(one.arg): ast.literal_eval(one.value) for one in mark.keywords}
    known = len(numbers) == 1 and numbers[0] in FAULTS and words.keys() == {"outcome", "operator"}
    if not known or words["outcome"] not in OUTCOMES or not words["operator"]:
        raise ValueError(
            f"{place}: {ast.unparse(mark)}: want fault(NUMBER, outcome={'|'.join(OUTCOMES)}, operator=TEXT)"
        )
    return FaultTest(numbers[0], words["outcome"], words["operator"], place)


def table(tests: list[FaultTest]) -> str:
    """A row for each test, and one for each fault without any."""
    rows = ["| | Fault | Outcome | What the operator sees | Test |", "|---|---|---|---|---|"]
    for number, fault in FAULTS.items():
        of_it = [one for one in tests if one.number == number]
        rows += [f"| {number} | {fault} | {OUTCOMES[t.outcome]} | {t.operator} | `{t.test}` |" for t in of_it]
        if not of_it:
            rows.append(f"| {number} | {fault} | **not tested** | | {BENCHMARKS.get(number, '')} |")
    return "\n".join(rows)


def document(text: str) -> str:
    """The page with its table replaced by the current one."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(marked_tests())}\n\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
