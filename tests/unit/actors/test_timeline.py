"""Spans as a Chrome trace: concurrent ones in lanes, times in microseconds; and the time in which an actor had work."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.actors.timeline import MOST_SPANS, WRITTEN_SPANS, Timeline, keep_trace, write_trace
from rlep.metrics.spans import Span, busy_shares, chrome_trace
from tests.waiting import until

SPANS = [
    Span("learner", "update", 104.0, 108.0),
    Span("generator-0", "generate", 100.0, 103.0, 64),
    Span("generator-0", "generate", 101.0, 104.5, 32),  # while the first is still going on: a second lane
    Span("generator-0", "load weights", 108.0, 110.0),
]


def complete(trace: dict[str, Any]) -> list[tuple[object, ...]]:
    """(actor, lane, name, begin, duration, arguments) of each span in the trace."""
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    return [
        (names[event["pid"]], event["tid"], event["name"], event["ts"], event["dur"], event["args"])
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]


def test_a_trace_has_a_process_for_each_actor_and_a_lane_for_each_concurrent_call(tmp_path: Path) -> None:
    write_trace(tmp_path / "timeline.json", SPANS)
    trace = json.loads((tmp_path / "timeline.json").read_text())
    assert complete(trace) == [
        ("generator-0", 0, "generate", 0, 3_000_000, {"count": 64}),
        ("generator-0", 1, "generate", 1_000_000, 3_500_000, {"count": 32}),
        ("learner", 0, "update", 4_000_000, 4_000_000, {}),
        ("generator-0", 0, "load weights", 8_000_000, 2_000_000, {}),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.json"]


def test_the_busy_share_counts_overlapping_work_once() -> None:
    assert busy_shares(SPANS) == {
        "generator-0": pytest.approx(0.65),
        "learner": pytest.approx(0.4),
    }  # 4.5 + 2, 4 of 10 s
    assert busy_shares([]) == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(1, 9)), min_size=1))
def test_lanes_never_overlap_and_shares_are_what_counting_seconds_gives(drawn: list[tuple[str, int, int]]) -> None:
    spans = [Span(actor, "work", float(begin), float(begin + length)) for actor, begin, length in drawn]
    lanes: dict[tuple[object, object], list[tuple[int, int]]] = defaultdict(list)
    trace: Any = chrome_trace(spans)
    for actor, lane, _, begin, length, _ in complete(trace):
        assert isinstance(begin, int)
        assert isinstance(length, int)
        assert all(end <= begin or begin + length <= start for start, end in lanes[actor, lane])
        lanes[actor, lane].append((begin, begin + length))
    assert sum(map(len, lanes.values())) == len(spans)
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    worked = {actor: {s for a, b, n in drawn if a == actor for s in range(b, b + n)} for actor, _, _ in drawn}
    assert busy_shares(spans) == {
        actor: pytest.approx(len(seconds) / (last - first)) for actor, seconds in worked.items()
    }


def test_a_span_ends_however_its_block_does_and_the_oldest_are_forgotten() -> None:
    now = iter(range(10_000_000))
    timeline = Timeline(lambda: float(next(now)))
    with pytest.raises(ZeroDivisionError), timeline.span("pool", "sample", 3):
        raise ZeroDivisionError
    assert timeline.spans == (Span("pool", "sample", 0.0, 1.0, 3),)
    for _ in range(MOST_SPANS):
        timeline.add("pool", "add", 2.0)
    assert len(timeline.spans) == MOST_SPANS
    assert {span.what for span in timeline.spans} == {"add"}


def test_the_last_step_is_the_last_that_came_to_its_end() -> None:
    now = iter(range(100))
    timeline = Timeline(lambda: float(next(now)))
    assert timeline.last_step() is None
    for number in (4, 5):  # 0…5 and 6…11: generate 1…2, update 3…4
        begin = timeline.now()
        for actor, what in (("generator-0", "generate"), ("learner", "update")):
            with timeline.span(actor, what):
                pass
        timeline.add_step(number, begin)
    with pytest.raises(ZeroDivisionError), timeline.span("learner", "update"):
        raise ZeroDivisionError
    last = timeline.last_step(["generator-0", "generator-1"])
    assert last is not None
    assert (last.number, last.begin, last.end) == (5, 6.0, 11.0)
    assert last.idle == {"generator": pytest.approx(0.9), "learner": pytest.approx(0.8)}
    assert timeline.last_step() is last
    assert [span.count for span in timeline.spans if span.what == "step"] == [4, 5]


@pytest.mark.asyncio
async def test_a_running_run_writes_its_newest_spans_and_no_full_disk_ends_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, file = Timeline(iter(range(10 * WRITTEN_SPANS)).__next__), tmp_path / "timeline.json"
    for number in range(WRITTEN_SPANS + 3):
        timeline.add("learner", "update", number)
    attempts: list[int] = []

    def once_full(path: Path, spans: tuple[Span, ...]) -> None:
        attempts.append(len(spans))
        if len(attempts) == 1:
            raise OSError(28, "No space left on device")
        write_trace(path, spans)

    monkeypatch.setattr("rlep.actors.timeline.write_trace", once_full)
    keeping = asyncio.create_task(keep_trace(file, timeline, 0.001))
    await until(file.exists, "the file")
    keeping.cancel()
    assert {*attempts} == {WRITTEN_SPANS}
    assert [span[3] for span in complete(json.loads(file.read_text()))][-1] == 1_000_000 * (WRITTEN_SPANS - 1)
