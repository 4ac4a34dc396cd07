"""Values that no run writes, and that JSON and Parquet may hold: one run's never take the list of all runs away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlep.metrics.spans import Span, chrome_trace, spans_of
from rlep.view import state, steps
from rlep.view.charts import ChartLook, ticks
from rlep.view.last_steps import end_of
from rlep.view.record import MOST_SOURCES, compute_at, compute_of_line, read_evaluations
from rlep.view.run_files import RunPlace, find_runs, number_of
from rlep.view.run_page import held_out_charts, overview
from rlep.view.state import complete_mark, summary_of
from rlep.view.steps import StepTable, read_steps
from rlep.view.study_pages import body_of
from rlep.view.words import number
from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import page

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"


def write(run: Path, name: str, *lines: object) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / name).write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def metrics(*numbers: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"step": at, "metrics": held} for at, held in enumerate(numbers)]


BAD: dict[str, tuple[str, list[dict[str, object]]]] = {
    "a share beyond every float in per cent": (METRICS, metrics({"rollout/accuracy": 1e307, "time/step": 1e308})),
    "sums beyond every float": (METRICS, metrics(*[{"time/step": 1.7e308, "a": at * 1e308} for at in (-1, 1)])),
    "a k of 5,000 digits": (EVALUATIONS, [{"step": 0, "avg": 0.5, "pass": {"1" * 5000: 1}}]),
    "a step of 400 digits": (EVALUATIONS, [{"step": 10**400, "avg": 0.5}, {"step": 1, "avg": 0.5}]),
    "an end of 400 digits": ("config.json", [{"run": {"steps": 10**400}}]),
    "lone surrogates": (METRICS, metrics({"\ud800x": 0.5, "rollout/accuracy": 0.5})),
    "surrogates in a source": (EVALUATIONS, [{"step": 0, "avg": 0.5, "data_source": "\ud800\u202ex"}]),
}


@pytest.mark.parametrize("fault", BAD)
def test_no_value_takes_a_page_away(tmp_path: Path, fault: str) -> None:
    write(tmp_path / "good", METRICS, *metrics({"rollout/accuracy": 0.25}))
    write(tmp_path / "bad", METRICS, *metrics({"rollout/accuracy": 0.75}, {"time/step": 2.0}))
    name, lines = BAD[fault]
    write(tmp_path / "bad", name, *lines)
    client, run = client_of(tmp_path), f"{tmp_path.name}~bad"
    text = page(client, "/")
    assert "25 %" in text
    assert f"/runs/{run}" in text
    for path in (f"/runs/{run}", f"/compare?run={run}", f"/runs/{run}/actors"):
        assert "\u202e" not in page(client, path)


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    write(tmp_path / "a", METRICS, *metrics({"rollout/accuracy": 0.25}))
    (tmp_path / "a" / "config.json").symlink_to("config.json")
    (tmp_path / "a" / "rollouts").symlink_to("rollouts")
    client, run = client_of(tmp_path), f"/runs/{tmp_path.name}~a"
    assert "25 %" in page(client, "/")
    assert "config.json cannot be found: " in page(client, run)
    assert "rollouts/step-000001.parquet cannot be found: " in page(client, f"{run}/steps/1")


def test_a_run_that_is_the_working_directory_may_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x" / "train-0-1", "events.jsonl", {"event": "run_interrupted"})
    monkeypatch.chdir(tmp_path / "x" / "train-0-1")
    (run,) = find_runs([Path()]).values()
    assert summary_of(run).state == "interrupted"
    assert complete_mark(Path()) == tmp_path / "x" / "train-0-1.complete"
    complete_mark(Path()).touch()
    assert summary_of(run).state == "finished"


def test_a_run_that_cannot_be_summed_up_is_named_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, METRICS, *metrics({"rollout/accuracy": 0.25}))
    read = state._read

    def refused(place: RunPlace, files: tuple[tuple[int, int, int] | None, ...]) -> object:
        if place.directory.name == "b":
            raise OverflowError("too large")
        return read(place, files)

    monkeypatch.setattr(state, "_read", refused)
    text = overview(list(find_runs([tmp_path]).values()))
    assert f"{tmp_path.name}~b is not listed: OverflowError(&#39;too large&#39;)" in text
    assert f'href="/runs/{tmp_path.name}~a"' in text
    assert f'href="/runs/{tmp_path.name}~b"' not in text


def test_numbers_of_files_are_bounded_and_numbers_of_others_are_written() -> None:
    assert [number_of(value) for value in (1e300, -1e301, 10**400, 3, True, float("nan"))] == [
        1e300,
        None,
        None,
        3,
        None,
        None,
    ]
    assert [number(value, unit) for value, unit in ((1e307, "share"), (-1e307, "s"), (1e307, ""))] == [
        "1e+307",
        "-1e+307",
        "1e+307",
    ]
    assert ticks(-1e308, 1e308)[2] == pytest.approx([-1e308, -5e307, 0.0, 5e307, 1e308])


def test_a_table_of_steps_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_CELLS", 36)
    write(tmp_path, METRICS, *metrics(*({"a": 1.0, f"m{at}": 1.0} for at in range(20)), {"a": 2.0}))
    table, notes = read_steps(RunPlace("a", tmp_path))
    assert list(table.steps) == [0, 1, 2, 3, 4, 20]  # 6 columns of 6 steps are 36 numbers, 7 of 6 would be 42
    assert {len(column) for column in table.columns.values()} == {6}
    assert notes == ("metrics.jsonl: 15 damaged or overlong lines are left out",)
    monkeypatch.setattr(steps, "MOST_COLUMNS", 3)
    assert StepTable().append((0, 0.0, {"a": [1, 2, 3, 4]})) is False


def test_a_metric_that_is_named_as_an_entry_of_a_list_is_that_entry() -> None:
    table = StepTable()
    assert table.append((0, 0.0, {"a[0]": 1.0, "a": [2.0, 3.0]}))
    assert {name: list(column) for name, column in table.columns.items()} == {"a[0]": [2.0], "a[1]": [3.0]}


def test_evaluations_of_many_sources_are_drawn_and_listed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"step": at, "avg": 0.5, "data_source": f"source {at % 40:02}"} for at in range(400)]
    write(tmp_path / "a", EVALUATIONS, *rows)
    write(tmp_path / "a", METRICS, *metrics({"a": 1.0}))
    found, _ = read_evaluations(RunPlace("a", tmp_path / "a"))
    drawn = held_out_charts(found, StepTable(), ChartLook())[0]
    assert drawn is not None
    assert [key.label for key in drawn.keys] == [f"source {at:02}" for at in range(MOST_SOURCES)]
    monkeypatch.setattr("rlep.view.run_page.MOST_EVALUATIONS", 3)
    client = client_of(tmp_path)
    text = page(client, f"/runs/{tmp_path.name}~a")
    assert [at for at in range(390, 400) if f"<td>{at}</td><td>source" in text] == [397, 398, 399]
    assert page(client, f"/compare?run={tmp_path.name}~a").count(": held-out accuracy</h3>") == MOST_SOURCES


def test_compute_needs_all_its_parts() -> None:
    table = StepTable()
    table.append((0, 0.0, {"compute/generated_tokens": 1.0, "compute/trained_tokens": 2.0}))
    assert compute_at(table, 1) is None
    assert compute_of_line({"compute/trained_tokens": 2.0}) is None


def test_steps_of_a_timeline_may_stand_in_any_order() -> None:
    made = [Span("driver", "step", begin, begin + 1, at) for at, begin in enumerate((5.0, 1.0, 4.0))]
    work = [Span(f"generator-{name}", "generate", 1.0, 6.0) for name in ("²", "1" * 5000)]
    end = end_of([*made, *work])
    assert end is not None
    assert (list(end.numbers), end.seconds, len(end.tracks)) == ([1, 2, 0], 5.0, 2)
    far = chrome_trace([Span("a", "b", 0, 1)]) | {"otherData": {"begin": 1e300}}
    with pytest.raises(ValueError, match="not a trace of rlep"):
        spans_of(far)


def test_a_study_without_a_budget_has_a_note() -> None:
    seed = {"compute": 1.0, "short": True}
    whole = {"budget": 0, "arms": [{"name": "a", "failed": {}, "seeds": {"1": seed}}], "notes": [], "comparisons": []}
    notes: list[str] = []
    assert body_of(whole, {}, "s", notes)["remarks"] == []
    assert any(note.startswith("study.json does not say its notes: ZeroDivisionError") for note in notes)
