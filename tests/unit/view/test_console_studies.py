"""The pages of studies, against a study's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.view.console_scene import client_of
from tests.unit.view.page_checks import Found, assert_harmless, page
from tests.unit.view.study_scene import write_study


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A study with a run of a phase, and a run that is none of its."""
    write_study(tmp_path / "runs" / "s")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "events.jsonl").write_text('{"event": "run_finished"}\n')
    return tmp_path / "runs"


def test_a_study_has_its_arms_seeds_differences_and_curves(home: Path) -> None:
    client = client_of(home)
    listed = Found(page(client, "/studies")).rows
    assert listed[1:] == [["runs~s", "none, rlep", "1, 2", "best control: none"]]
    text = page(client, "/studies/runs~s")
    rows = Found(text).rows
    assert ["none (control)", "2", "30.0", "40.0", "50.0", "1.25", "3.0", ""] in rows  # means over the seeds
    assert ["rlep", "1, 1 failed", "30.0", "70.0", "50.0", "1.25", "3.0", ""] in rows
    assert ["none", "2", "40.0", "50.0", "50.0", "1 M", "50 %", ""] in rows
    assert [row[-1] for row in rows if row[:2] == ["rlep", "1"] and len(row) == 8] == [
        "its last accuracy is taken for the rest"
    ]
    assert ["area", "rlep", "none", "+10.00", "one seed", "+10.00", "–", ""] in rows
    assert "every difference is that of two runs: one seed has no interval over seeds and no p" in text
    assert ["rlep", "collect → sft"] in rows
    assert [row[:3] for row in rows if row[0].startswith("runs~")] == [["runs~s~phases~train-0-1", "–", "finished"]]
    assert text.count("<figure>") == 4
    assert "rlep <b>80 %</b>" in text  # pass@n, which the other arm was written without
    assert text.count("none <b>40 %</b>") == 3  # the mean of the last accuracies, over compute, steps and time
    assert "All arms at 2M tokens" in text
    assert_harmless(text)
    assert_harmless(page(client, "/studies"))
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4  # title, note, reason as a note and in the table


def test_a_study_that_works_has_its_plan(home: Path) -> None:
    (home / "s" / "study.json").unlink()
    client = client_of(home)
    assert ["runs~s", "none, rlep", "1, 2", "planned"] in Found(page(client, "/studies")).rows
    text = page(client, "/studies/runs~s")
    assert "study.json is missing: rlep study report writes it" in text
    assert ["none (control)", "train (replay.count = 0)"] in Found(text).rows
    assert "/runs/runs~s~phases~train-0-1" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "study.json cannot be read"),
        ("[]", "study.json is not a JSON object"),
        ('{"name": "x"}', "study.json does not say its arms"),
        (
            '{"arms": [{"name": 1, "control": 0, "seeds": {"1": {}}, "failed": {}}], "budget": "x"}',
            "does not say its seeds",
        ),
        ('{"arms": 7, "comparisons": [[]], "notes": 1}', "study.json does not say its differences"),
    ],
)
def test_a_damaged_study_shows_the_rest(home: Path, content: str, reason: str) -> None:
    (home / "s" / "study.json").write_text(content)
    client = client_of(home)
    text = page(client, "/studies/runs~s")
    assert reason in text
    assert ["none (control)", "train (replay.count = 0)"] in Found(text).rows
    assert page(client, "/studies")
    (home / "s" / "plan.json").write_text('{"study": 1, "arm": [7, {"phase": 1}, {"phase": [1, {"set": 3}]}]}')
    assert page(client, "/studies/runs~s")
    assert page(client, "/studies")


def test_no_name_leads_out_of_the_studies(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "study.json").write_text("{}")
    (home / "linked").symlink_to(tmp_path / "secret")
    client = client_of(home)
    for name in ("%2e%2e", "%2e%2e%2fsecret", "runs~linked", "runs~other", "runs~s%00"):
        assert client.get(f"/studies/{name}").status_code == 404
