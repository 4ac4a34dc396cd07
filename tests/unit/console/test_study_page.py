"""The page of a study: the figures of its study.json, and what it shows of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.console.templates_of import figure
from rlep.study.study_report import write_report
from tests.unit.console.console_scene import ATTACK, client_of
from tests.unit.console.page_checks import Found, page
from tests.unit.study.made_up_study import MadeUp, conducted, study_file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_report(conducted(study_file(tmp_path / "runs"), MadeUp(fail_seed=2)))
    return tmp_path / "runs"


def test_the_figures_of_a_study(home: Path) -> None:
    client = client_of(home)
    assert '<a href="/studies/runs~study">' in page(client, "/")
    whole = json.loads((home / "study" / "study.json").read_text())
    rows = Found(page(client, "/studies/runs~study")).rows
    for arm in whole["arms"]:
        (run,) = arm["seeds"].values()  # seed 2 failed
        name = arm["name"] + (" (control)" if arm["control"] else "")
        (row,) = [row for row in rows if row[0] == name and len(row) == 7]
        assert row[1:4] == ["1", figure(run["area"]), figure(run["final"])]
    assert ["none", "2", "train", "exit code 1: out of luck"] in rows
    shown = [row for row in rows if row[0] in ("area", "final")]
    assert [row[3] for row in shown] == [figure(one["paired"]["mean"]) for one in whole["comparisons"]]


def test_a_curve_holds_each_evaluation_until_the_next(home: Path) -> None:
    path = home / "study" / "study.json"
    curve = [[0.0, 0, 0.0, 0.25], [500.0, 2, 1.0, 0.75]]
    arm = {"name": "one", "control": False, "seeds": {"1": {"curve": curve}}, "failed": {}}
    path.write_text(json.dumps({"budget": 1000.0, "arms": [arm], "comparisons": []}))
    text = page(client_of(home), "/studies/runs~study")
    (line,) = [part.partition('"')[0] for part in text.split('points="')[1:]]
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) == 201
    assert len(set(heights[:100])) == len(set(heights[100:])) == 1
    assert heights[0] > heights[100]  # SVG's y grows downwards


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (None, "study.json is missing"),
        ("{", "study.json cannot be read"),
        ("[]", "study.json is not a JSON object"),
        ('{"arms": 3, "comparisons": [1], "budget": "x"}', ""),
        ('{"arms": [{"seeds": {"1": {"curve": [[1], "x"], "area": "NaN"}}}], "budget": 1e999}', ""),
    ],
)
def test_a_damaged_file_is_named(home: Path, content: str | None, note: str) -> None:
    path = home / "study" / "study.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert note in page(client_of(home), "/studies/runs~study")


def test_nothing_in_a_study_is_markup(home: Path) -> None:
    arm = {"name": ATTACK, "seeds": {}, "failed": {ATTACK: {"phase": ATTACK, "reason": ATTACK}}}
    row = {"endpoint": ATTACK, "arm": ATTACK, "control": ATTACK, "paired": {}, "p_holm": ATTACK}
    (home / "study" / "study.json").write_text(json.dumps({"budget": 1, "arms": [arm], "comparisons": [row]}))
    names = Found(page(client_of(home), "/studies/runs~study")).names
    assert not names & {"script", "img", "onerror", "onload"} - {"script"}
    assert client_of(home).get("/studies/nothing").status_code == 404
    assert client_of(home, logged_in=False).get("/studies/runs~study").status_code in (303, 401)
