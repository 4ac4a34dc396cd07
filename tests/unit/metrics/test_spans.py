"""What determined a step's end, and who was idle meanwhile: steps worked out by hand, and any step within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlep.metrics.spans import (
    WAITS_FOR,
    Span,
    breakdown_of,
    chrome_trace,
    critical_path,
    idle_shares,
    role_of,
    spans_of,
    steps_of,
)

SYNCHRONOUS = [
    Span("pool", "sample", 1, 3),
    Span("generator-0", "generate", 1, 8),
    Span("generator-1", "generate", 1, 9),
    Span("verifier-0", "grade", 8.5, 9.5),
    Span("verifier-0", "grade", 9.25, 10),  # of the last answer, written at 9
    Span("learner", "score", 10.5, 12),
    Span("learner", "update", 12, 15),
    Span("learner", "update", 15, 18),
    Span("learner", "publish", 18, 19),
    Span("generator-0", "load weights", 19, 19.5),
    Span("generator-1", "load weights", 19, 20),
]
STEP = Span("driver", "step", 0, 20, 7)


def links(spans: list[Span], begin: float, end: float) -> list[tuple[str, str, float, float]]:
    """(actor, what, begin, end) of each link."""
    return [(link.actor, link.what, link.begin, link.end) for link in critical_path(spans, begin, end)]


def streamed(first_update_ends: float) -> list[Span]:
    """Two sets; the first is trained while the second is written until 9, its verdicts are there at 9.5."""
    free = max(9.5, first_update_ends)
    return [
        Span("generator-0", "generate", 0, 9),
        Span("verifier-0", "grade", 4, 4.5),
        Span("verifier-0", "grade", 9.25, 9.5),
        Span("learner", "score", 4.5, 5.5),
        Span("learner", "update", 5.5, first_update_ends),
        Span("learner", "score", free, free + 0.5),
        Span("learner", "update", free + 0.5, free + 1.5),
        Span("learner", "publish", free + 1.5, free + 2),
        Span("generator-0", "load weights", free + 2, free + 2.5),
    ]


def test_a_synchronous_step_waits_for_the_slower_generator_the_last_verdict_and_the_learner() -> None:
    assert links(SYNCHRONOUS, 0, 20) == [
        ("generator-1", "generate", 1, 9),
        ("verifier-0", "grade", 9.25, 10),
        ("learner", "score", 10.5, 12),
        ("learner", "update", 12, 15),
        ("learner", "update", 15, 18),
        ("learner", "publish", 18, 19),
        ("generator-1", "load weights", 19, 20),
    ]
    seconds = breakdown_of(STEP, SYNCHRONOUS).path_seconds()
    assert seconds == {
        "generate": 8,
        "update": 6,
        "score": 1.5,
        "publish": 1,
        "load weights": 1,
        "grade": 0.75,
        "waiting": 1.75,  # 1 before the first request, 0.25 and 0.5 around the last verdict
    }
    assert list(seconds)[:3] == ["generate", "update", "score"]


def test_a_streamed_step_hangs_on_the_last_answer_or_on_a_slow_learner() -> None:
    end = [
        ("learner", "score", 9.5, 10.0),
        ("learner", "update", 10.0, 11.0),
        ("learner", "publish", 11.0, 11.5),
        ("generator-0", "load weights", 11.5, 12.0),
    ]
    last_answer = [("generator-0", "generate", 0, 9), ("verifier-0", "grade", 9.25, 9.5)]
    assert links(streamed(8.5), 0, 12) == [*last_answer, *end]
    # The first update ends at 10: the second set waited for the learner, which began with answers written until 4.
    assert links(streamed(10), 0, 12.5) == [
        ("generator-0", "generate", 0, 4),
        ("verifier-0", "grade", 4, 4.5),
        ("learner", "score", 4.5, 5.5),
        ("learner", "update", 5.5, 10),
        *[(actor, what, begin + 0.5, stop + 0.5) for actor, what, begin, stop in end],
    ]


def test_a_turn_waits_for_its_environment_and_that_for_the_turn_before() -> None:
    spans = [
        Span("generator-0", "generate", 0, 3),
        Span("environment-0", "act", 3, 5),
        Span("generator-0", "generate", 5.5, 7),
        Span("environment-0", "act", 7, 7.25),
        Span("verifier-0", "grade", 7.5, 8),
        Span("learner", "score", 8, 9),
        Span("learner", "update", 9, 10),
    ]
    assert links(spans, 0, 10)[:5] == [
        ("generator-0", "generate", 0, 3),
        ("environment-0", "act", 3, 5),
        ("generator-0", "generate", 5.5, 7),
        ("environment-0", "act", 7, 7.25),
        ("verifier-0", "grade", 7.5, 8),
    ]


def test_work_of_the_next_step_and_of_the_one_before_is_not_on_the_path() -> None:
    ahead = Span("generator-0", "generate", 11, 30)
    before = Span("learner", "update", -5, -1)
    assert links([*streamed(8.5), ahead, before], 0, 12) == links(streamed(8.5), 0, 12)
    # What began before the step counts from the step's begin.
    assert links([Span("learner", "update", -3, 2), Span("learner", "publish", 2, 3)], 0, 3) == [
        ("learner", "update", 0, 2),
        ("learner", "publish", 2, 3),
    ]
    assert links([], 0, 3) == []


def test_idle_shares_are_means_over_a_role() -> None:
    assert idle_shares(SYNCHRONOUS, 0, 20, ["verifier-1"]) == {
        "generator": pytest.approx(1 - (7.5 + 9) / 40),
        "learner": pytest.approx(1 - 8.5 / 20),
        "pool": pytest.approx(0.9),
        "verifier": pytest.approx(1 - 1.5 / 40),  # overlapping calls once; the second verifier had nothing to do
    }
    assert idle_shares([*SYNCHRONOUS, STEP], 0, 10)["learner"] == 1
    assert [role_of(name) for name in ("generator-12", "learner", "pool", "my-pool")] == [
        "generator",
        "learner",
        "pool",
        "my-pool",
    ]


def test_a_trace_is_read_back() -> None:
    spans = sorted([*SYNCHRONOUS, STEP], key=lambda span: (span.begin, span.end))
    assert spans_of(chrome_trace(spans)) == spans
    assert [step.count for step in steps_of(spans)] == [7]
    late = chrome_trace([Span("a", "b", 0, 1)]) | {"otherData": {"begin": float("inf")}}
    wrong: list[dict[str, object]] = [
        {},
        {"traceEvents": []},
        {"traceEvents": [{"ph": "X"}], "otherData": {"begin": 0}},
        late,
    ]
    for broken in wrong:
        with pytest.raises(ValueError, match="not a trace of rlep"):
            spans_of(broken)


NAMES = sorted(WAITS_FOR.keys() | {"start", "add"})


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-5, 25), st.integers(0, 9))))
def test_links_are_pieces_of_spans_in_order_within_the_step(drawn: list[tuple[str, int, int]]) -> None:
    spans = [Span("a-0", what, begin, begin + length) for what, begin, length in drawn]
    path = critical_path(spans, 0, 20)
    times = [0.0, *(time for link in path for time in (link.begin, link.end)), 20.0]
    assert times == sorted(times)
    for link in path:
        assert link.begin <= link.end
        assert any(s.what == link.what and s.begin <= link.begin and link.end <= s.end for s in spans)
    assert sum(breakdown_of(Span("driver", "step", 0, 20), spans).path_seconds().values()) == pytest.approx(20)
