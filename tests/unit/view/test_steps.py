"""``metrics.jsonl`` read as columns, while it grows, is cut, and is damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlep.view import steps
from rlep.view.record import load_run
from rlep.view.run_files import RunPlace, number_of, read_tail
from rlep.view.steps import fields_of, read_steps


def line(step: int, numbers: Mapping[str, object]) -> str:
    return json.dumps({"step": step, "wall_s": 2.0 * step, "metrics": numbers}) + "\n"


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    return RunPlace("a", tmp_path)


def written(place: RunPlace, text: str, mode: str = "a") -> None:
    with (place.directory / "metrics.jsonl").open(mode) as file:
        file.write(text)


def test_only_what_was_appended_is_read(place: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    parse = steps._line_of

    def counted(raw: bytes) -> steps.Fields | None:
        read.append(raw)
        return parse(raw)

    monkeypatch.setattr(steps, "_line_of", counted)
    for step in range(3):
        written(place, line(step, {"a": step, "b" if step else "c": 0.5, "list": [1], "nothing": None}))
        for _ in range(2):
            table, notes = read_steps(place)
            assert (list(table.steps), notes) == (list(range(step + 1)), ())
    assert len(read) == 3
    assert table.points("a") == ((0, 0.0), (1, 1.0), (2, 2.0))
    assert table.points("b") == ((1, 0.5), (2, 0.5))
    assert table.points("c") == ((0, 0.5),)
    assert table.line(0).numbers == {"a": 0.0, "c": 0.5, "list[0]": 1.0}
    assert table.line(2).numbers == {"a": 2.0, "b": 0.5, "list[0]": 1.0}
    assert list(table.wall_s) == [0.0, 2.0, 4.0]


def test_an_unfinished_line_is_read_when_it_is_complete(place: RunPlace) -> None:
    text = line(0, {"a": 1.0})
    written(place, text[:9])
    assert (len(read_steps(place)[0]), read_steps(place)[1]) == (0, ("metrics.jsonl: the last line is unfinished",))
    written(place, text[9:])
    assert (len(read_steps(place)[0]), read_steps(place)[1]) == (1, ())


def test_a_file_that_was_cut_and_goes_on_is_read_anew(place: RunPlace) -> None:
    written(place, "".join(line(step, {"a": 1.0}) for step in range(4)))
    assert len(read_steps(place)[0]) == 4
    kept = "".join(line(step, {"a": 1.0}) for step in range(2))
    written(place, kept + "".join(line(step, {"a": 2.0}) for step in range(2, 9)), "w")  # longer than before
    assert read_steps(place)[0].points("a") == (
        *((step, 1.0) for step in range(2)),
        *((step, 2.0) for step in range(2, 9)),
    )
    written(place, kept, "w")
    assert list(read_steps(place)[0].steps) == [0, 1]


def test_what_is_no_line_of_a_step_is_counted(place: RunPlace) -> None:
    good = line(7, {"big": 10**400, "odd": "text", "flag": True, "a": 0.25})
    written(place, '[]\n\n{"step": true, "metrics": {}}\n' + "[" * 100_000 + "\n" + "no json\n" + good)
    table, notes = read_steps(place)
    assert notes == ("metrics.jsonl: 4 damaged or overlong lines are left out",)
    assert table.line(0).numbers == {"a": 0.25}
    written(place, '{"step": 8, "wall_s": NaN, "metrics": {"a": Infinity, "\\ud800": 1, "b": 1}}\nhalf')
    found = fields_of(read_tail(place, "metrics.jsonl").lines[-1])
    assert found is not None
    assert (found[:2], [number_of(found[2][name]) for name in ("a", "b")]) == ((8, 0.0), [None, 1.0])


def test_of_a_large_file_the_end_is_read_unless_all_is_wanted(place: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(line(1000, {"a": 1.0}))
    monkeypatch.setattr(steps, "MOST_BYTES", 10 * one + 5)
    written(place, "".join(line(1000 + step, {"a": 1.0}) for step in range(50)))
    table, notes = read_steps(place)
    assert list(table.steps) == list(range(1040, 1050))
    assert notes == (f"metrics.jsonl is larger than {10 * one + 5} bytes: its end is shown",)
    table, notes = read_steps(place, whole=True)
    assert (list(table.steps), table.made, notes) == (list(range(1000, 1050)), 1050, ())
    assert len(load_run(place.directory, taken=set()).table) == 50  # of reports and studies
    for step in range(50, 90):
        written(place, line(1000 + step, {"a": 1.0}))
        table, _ = read_steps(place)
        assert table.steps[-1] == 1000 + step
        assert 10 <= len(table) <= 21  # begun anew at twice as much


def test_memory_is_bounded_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_CELLS", 25)
    places = [RunPlace(str(number), tmp_path / str(number)) for number in range(3)]
    for place in places:
        place.directory.mkdir()
        written(place, "".join(line(step, {"a": 1.0}) for step in range(10)))
        assert len(read_steps(place)[0]) == 10
    kept = [path.parent.name for path in steps._KEPT if path.is_relative_to(tmp_path)]
    assert kept == ["1", "2"]
