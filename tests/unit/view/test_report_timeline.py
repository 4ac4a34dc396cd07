"""The report's timeline: bars, tracks and numbers of a run that left one, and nothing where it is missing or broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.actors.timeline import write_trace
from rlep.metrics.spans import Span
from rlep.view.last_steps import bars_of, end_of, last_steps, tracks
from rlep.view.record import load_run
from rlep.view.report import build_report
from rlep.view.report import last_steps as rows_of
from tests.unit.view.report_values import write_run

pytestmark = pytest.mark.slow

T = 1_000_000.0


def step(number: int) -> list[Span]:
    """Step ``number`` takes 10 s: generate 1…5, grade 5…6, score 6…6.5, update 6.5…8, publish 8…9, load weights 9…10."""
    begin = T + 10 * number
    chain: list[tuple[str, str, float, float]] = [
        ("generator-0", "generate", 1, 5),
        ("verifier-0", "grade", 5, 6),
        ("learner", "score", 6, 6.5),
    ]
    chain += [("learner", "update", 6.5, 8), ("learner", "publish", 8, 9), ("generator-0", "load weights", 9, 10)]
    work = [Span(actor, what, begin + first, begin + last) for actor, what, first, last in chain]
    return [*work, Span("driver", "step", begin, begin + 10, number)]


SPANS = [span for number in range(5) for span in step(number)]
SPANS.append(Span("generator-10", "generate", T + 21, T + 23))  # of step 2 alone
SPANS.append(Span("learner", "save", T + 50, T + 55))  # after the last step


def run_with(directory: Path, spans: list[Span]) -> Path:
    """A finished run that left these spans."""
    run = write_run(directory / "run", [(0, 0.1), (20, 0.2)])
    write_trace(run / "timeline.json", spans)
    return run


def test_the_page_says_what_the_last_step_waited_for_and_who_was_idle(tmp_path: Path) -> None:
    run = run_with(tmp_path, SPANS)
    end = end_of(load_run(run, taken=set()).spans)
    assert end is not None
    assert rows_of([("run", end)]) == [
        {
            "run": "run",
            "step": "4",
            "seconds": "10.00",
            "critical path": "generate 4.00 s (40 %), update 1.50 s (15 %), grade 1.00 s (10 %), publish 1.00 s (10 %), "
            "load weights 1.00 s (10 %), score 0.50 s (5 %), waiting 1.00 s (10 %)",
            "idle": "generator 75 %, learner 70 %, verifier 90 %",  # one of two generators had nothing to do
        }
    ]
    html = build_report([run], tmp_path / "out").html.read_text()
    assert html.count("<figure>") == 5  # accuracy by step and clock, seconds, groups, timeline
    assert "generator 75 %, learner 70 %, verifier 90 %" in html
    first, second = (build_report([run], tmp_path / name) for name in ("a", "b"))
    assert first.html.read_bytes() == second.html.read_bytes()
    assert first.svg.read_bytes() == second.svg.read_bytes()


def test_the_last_three_whole_steps_are_drawn(tmp_path: Path) -> None:
    unfinished = [Span("generator-0", "generate", T + 51, T + 58)]
    record = load_run(run_with(tmp_path, [*SPANS, *unfinished]), taken=set())
    steps, spans = last_steps(record.spans)
    assert [step.count for step in steps] == [2, 3, 4]
    assert (min(span.begin for span in spans), max(span.end for span in spans)) == (T + 21, T + 50)
    assert {span.actor for span in spans} == {"generator-0", "generator-10", "verifier-0", "learner"}
    assert end_of(unfinished) is None
    assert end_of([]) is None


def test_bars_of_one_kind_that_nearly_touch_are_one_and_tracks_stand_in_order_of_the_work() -> None:
    spans = [
        Span("learner", "update", 0, 40),
        Span("generator-10", "generate", -5, 20),  # cut at the picture's begin
        Span("generator-10", "generate", 20.1, 30),  # 0.1 of 100: nearly touches
        Span("generator-10", "generate", 31, 150),
        Span("generator-2", "load weights", 90, 95),
        Span("generator-2", "start", 10, 12),
        Span("pool", "sample", 0, 1),
        Span("verifier-0", "grade", 5, 9),
        Span("verifier-0", "grade", 6, 7),  # within the other
    ]
    bars = bars_of(spans, 0, 100)
    assert tracks(bars) == ["generator-2", "generator-10", "verifier-0", "pool", "learner"]
    assert bars["generator-10"] == {"generate": [(0, 30), (31, 69)]}
    assert bars["generator-2"] == {"publish": [(90, 5)], "other": [(10, 2)]}
    assert bars["verifier-0"] == {"verify": [(5, 4)]}


@pytest.mark.parametrize(
    ("content", "note"),
    [("{", "cannot be read"), ("[]", "is not a JSON object"), ('{"traceEvents": 3}', "not a trace")],
)
def test_a_broken_timeline_is_a_note_and_a_missing_one_is_not(tmp_path: Path, content: str, note: str) -> None:
    run = write_run(tmp_path / "run", [(0, 0.1), (20, 0.2)])
    assert load_run(run, taken=set()).notes == ()
    (run / "timeline.json").write_text(content)
    (said,) = load_run(run, taken=set()).notes
    assert said.startswith("timeline.json")
    assert note in said
    assert build_report([run], tmp_path / "out").html.read_text().count("<figure>") == 4


def test_a_hundred_tracks_and_names_of_strangers_are_drawn(tmp_path: Path) -> None:
    more = [Span(f"generator-{n}", "generate", T + 41, T + 44) for n in range(100)]
    run = run_with(tmp_path, [*SPANS, *more, Span("<b>$\\frac{</b>", "add", T + 42, T + 43)])
    html = build_report([run], tmp_path / "out").html.read_text()
    assert html.count("<figure>") == 5
    assert "<b>$" not in html
    assert json.loads((run / "timeline.json").read_text())["otherData"]["begin"] == T
