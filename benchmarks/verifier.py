"""Speed of the verifier, and agreement of its two paths.

    python benchmarks/verifier.py [--pairs 100000] [--json FILE]

* ``integers``: verdicts per CPU second of this process, extraction from texts of about 2 kB included;
* ``symbolic``: CPU seconds for a mix of expressions, the full path's against math-verify's own ``parse`` and ``verify``;
* ``workers``: verdicts per second of two workers over one (2.0 is the limit, on two free cores);
* ``one_call``: 8,192 responses of 512 prompts like DAPO's in one call;
* ``agreement``: pairs of plain numbers on which the fast path and the full path differ;
* ``hostile``: seconds of the slowest of the tests' hostile answers and of the honest answers behind them, one per call.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "verifier.json"
FILLER = "We compute $x^{2}+\\frac{1}{2}$ so that the next step follows. " * 30
SYMBOLIC = [
    ("x^2+2x+1", "(x+1)^2"),
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("(1,2]", "(1,2]"),
    ("\\cos x", "\\sin(x+\\frac{\\pi}{2})"),
    ("2\\pi", "\\frac{4\\pi}{2}"),
    ("\\{1,2,3\\}", "\\{3,2,1\\}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
    ("y=2x+1", "y-2x=1"),
    ("3+4i", "4i+3"),
    ("\\frac{x}{x+1}", "1-\\frac{1}{x+1}"),
]


def main() -> None:
    """Run all parts and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs for the agreement of the two paths")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start",
        "integers_per_cpu_second": round(integers()),
        "workers_2_over_1": round(workers(2) / workers(1), 2),
        "one_call": one_call(),
        "symbolic_speed_over_math_verify": round(symbolic(), 2),
        "agreement": agreement(arguments.pairs),
        "hostile": hostile(),
    }
    print(json.dumps(figures, indent=2))
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def integers() -> float:
    """Verdicts per CPU second; the best of three."""
    from rlep.services.verifier.verifier import Verifier

    texts = [f"{FILLER}\\boxed{{{number % 90}}}" for number in range(20_000)]
    with Verifier() as verifier:
        verifier.grade("x", ["\\boxed{y}"], [False])  # the worker has started
        best = min(_cpu(lambda: verifier.grade("62", texts, [False] * len(texts))) for _ in range(3))
    return len(texts) / best


def workers(count: int) -> float:
    """Symbolic verdicts per second of ``count`` workers."""
    from rlep.services.verifier.verifier import Verifier

    pairs = [
        (gold, f"\\boxed{{{answer}+{shift}-{shift}}}", False) for shift in range(1, 41) for gold, answer in SYMBOLIC[:5]
    ]
    with Verifier(workers=count) as verifier:
        verifier.grade_pairs(pairs[:32])  # every worker has started
        started = time.perf_counter()
        verifier.grade_pairs(pairs)
        return len(pairs) / (time.perf_counter() - started)


def one_call() -> dict[str, float]:
    """Seconds for 512 prompts with 16 responses each: integers, one in eight as an expression."""
    from rlep.services.verifier.verifier import Verifier

    draw = random.Random(0)
    pairs = []
    for _ in range(512):
        gold = draw.randint(0, 999)
        for sample in range(16):
            guess = draw.choice([gold, gold + 1, draw.randint(0, 999)])
            answer = f"{guess}+{sample}-{sample}" if sample % 8 == 0 else str(guess)
            pairs.append((str(gold), f"{FILLER}\nAnswer: {answer}", False))
    with Verifier() as verifier:
        verifier.grade("x", ["\\boxed{y}"], [False])
        started = time.perf_counter()
        verdicts = verifier.grade_pairs(pairs)
        seconds = time.perf_counter() - started
    full = sum(verdict.path == "full" for verdict in verdicts)
    return {"verdicts": len(verdicts), "full_path": full, "seconds": round(seconds, 2)}


def symbolic() -> float:
    """math-verify's CPU seconds over the full path's; the same mix, references parsed as each of them does."""
    from math_verify import parse, verify

    from rlep.services.verifier.grading import judge

    mix = [
        (gold, f"{answer}+{shift}-{shift}") for shift in range(1, 6) for gold, answer in SYMBOLIC[:2] + SYMBOLIC[3:5]
    ]
    mix += SYMBOLIC

    def engine() -> None:
        for gold, answer in mix:
            sides = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)]
            verify(*sides, timeout_seconds=None)

    def ours() -> None:
        for gold, answer in mix:
            judge(gold, answer)

    engine()
    ours()  # both warm
    peer, mine = zip(*((_cold(engine), _cold(ours)) for _ in range(3)), strict=True)
    return min(peer) / min(mine)


def agreement(count: int) -> dict[str, int]:
    """Differences between the two paths on seeded pairs of plain numbers."""
    from rlep.services.verifier import exact
    from rlep.services.verifier.grading import judge

    draw = random.Random(1)
    differences = 0
    for _ in range(count):
        value = Fraction(draw.randint(-2000, 20000), draw.choice([1, 1, 1, 10, 100, draw.randint(2, 40)]))
        other = draw.choice([value, value, -value, value + 1, value * 10, Fraction(draw.randint(-99, 99))])
        pair = _spelled(draw, value), _spelled(draw, other)
        differences += exact.decide(*pair) != judge(*pair)
    return {"pairs": count, "differences": differences}


def hostile() -> dict[str, float]:
    """Wall seconds; the CPU deadline is 1 s."""
    from rlep.services.verifier.verifier import Verifier

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.services.verifier.verifier_hostile import HOSTILE

    slowest, next_slowest, right = 0.0, 0.0, 0
    with Verifier() as verifier:
        verifier.grade("x", ["\\boxed{y}"], [False])
        for number, (reference, response) in enumerate(HOSTILE):
            started = time.perf_counter()
            (bad,) = verifier.grade(reference, [response], [False])
            answered = time.perf_counter()
            (fair,) = verifier.grade("x+1", [f"\\boxed{{{number}+x-{number - 1}}}"], [False])
            slowest, next_slowest = max(slowest, answered - started), max(next_slowest, time.perf_counter() - answered)
            right += bad.status != "correct" and fair.status == "correct"
    return {
        "answers": len(HOSTILE),
        "right": right,
        "slowest": round(slowest, 2),
        "slowest_next": round(next_slowest, 2),
    }


def _spelled(draw: random.Random, value: Fraction) -> str:
    top, bottom = value.numerator, value.denominator
    if bottom == 1:
        return draw.choice([str(top), f"{top:,}", f"{top}.0", f"{top:,}".replace(",", "{,}"), f"{2 * top}/2"])
    if set(str(bottom)) <= {"1", "0"}:
        return draw.choice([str(float(value)), f"{top}/{bottom}"])
    return draw.choice([f"\\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", f"\\dfrac{{{2 * top}}}{{{2 * bottom}}}"])


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _cold(work: Callable[[], object]) -> float:
    """CPU seconds with the engine's caches emptied, as new answers would find them."""
    from sympy.core.cache import clear_cache

    clear_cache()
    return _cpu(work)


if __name__ == "__main__":
    main()
