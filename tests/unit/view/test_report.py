"""The report: its numbers by hand, and pages of runs that are whole, unfinished, broken or hostile."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlep.core.errors import DataError
from rlep.metrics.logs import EvaluationsLog
from rlep.view.record import load_runs
from rlep.view.report import build_report, coverage_text
from tests.unit.view.report_values import evaluation, summary, write_collection, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Baseline, RLEP, two controls and a collection."""
    root = tmp_path_factory.mktemp("runs")
    return [
        write_run(root / "base", [(0, 0.1), (10, 0.2), (20, 0.3)], width=0.04),
        write_run(root / "replay", [(0, 0.1), (10, 0.3), (20, 0.26)], replays=2, seconds=3.0, width=0.04),
        write_run(root / "longer", [(0, 0.1), (20, 0.15)]),
        write_run(root / "imitation", [(0, 0.1), (20, 0.35)], command="sft"),
        write_collection(root / "collect"),
    ]


def test_the_numbers_by_hand(runs: list[Path]) -> None:
    found = summary(runs)
    base, replay, longer, imitation = found.runs
    assert [run.role for run in found.runs] == ["baseline", "rlep", "control", "control"]
    assert (base.start, base.peak, base.peak_step, base.final) == (0.1, 0.3, 20, 0.3)
    assert (replay.peak, replay.peak_step, replay.final) == (0.3, 10, 0.26)
    assert (longer.label, imitation.label) == ("longer", "imitation")
    # trapezoids: (10 · 0.15 + 10 · 0.25) / 20 and (10 · 0.2 + 10 · 0.28) / 20
    assert base.area == pytest.approx(0.2)
    assert replay.area == pytest.approx(0.24)
    assert found.means is not None
    assert [mean.avg for mean in found.means] == pytest.approx([0.24, 0.2])
    assert (base.seconds_per_step, replay.seconds_per_step) == (2.0, 3.0)
    assert (base.wall_s, replay.wall_s) == (40.0, 60.0)
    assert found.crossing is not None
    assert found.crossing.rlep is not None
    assert (found.crossing.baseline_step, found.crossing.rlep.step) == (20, 10)
    assert (found.crossing.baseline_wall_s, found.crossing.rlep.wall_s) == (40.0, 30.0)
    assert found.notes == ()


def test_the_table_and_the_sentence(runs: list[Path]) -> None:
    found = summary(runs)
    assert found.rows()[1] == {
        "run": "replay",
        "role": "RLEP",
        "G + M": "3 + 2",
        "steps": "20",
        "start": "10.0%",
        "peak": "30.0% at step 10",
        "final": "26.0% (n = 4)",
        "mean over steps": "24.0%",
        "s per step": "3.00",
        "minutes": "1.0",
    }
    assert found.headline() == (
        "The baseline peaks at 30.0% at step 20; RLEP reaches that at step 10 (50% of the steps): "
        "30.0% [26.0, 34.0] there, the baseline 20.0% [16.0, 24.0]. "
        "Averaged over the steps, RLEP has 24.0% [20.0, 28.0], the baseline 20.0% [16.0, 24.0]: the intervals overlap, and "
        "without the samples of both runs (samples/) their questions cannot be compared in pairs. "
        "One seed of each: the intervals cover the questions, not another run's seed."
    )


def test_the_mean_is_claimed_where_the_intervals_do_not_overlap(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [(0, 0.1), (10, 0.1), (20, 0.3)], width=0.04)  # (1 + 2) / 20 = 15 %
    replay = write_run(tmp_path / "replay", [(0, 0.1), (10, 0.5), (20, 0.5)], replays=2, width=0.04)  # (3 + 5) / 20
    assert (
        summary([base, replay])
        .headline()
        .endswith(
            "Averaged over the steps, RLEP is 25.0 points above the baseline: "
            "RLEP has 40.0% [36.0, 44.0], the baseline 15.0% [11.0, 19.0]. "
            "One seed of each: the intervals cover the questions, not another run's seed."
        )
    )


@pytest.mark.parametrize(
    ("width", "certain"), [(0.049, True), (0.051, False)]
)  # 20 and 30 %: 24.9 < 25.1 but 25.1 > 24.9
def test_the_step_is_claimed_only_where_the_intervals_there_do_not_overlap(
    tmp_path: Path, width: float, certain: bool
) -> None:
    base = write_run(tmp_path / "base", [(0, 0.1), (10, 0.2), (20, 0.3)], width=width)
    replay = write_run(tmp_path / "replay", [(0, 0.1), (10, 0.3)], replays=2, width=width)
    found = summary([base, replay])
    assert found.crossing is not None
    assert found.crossing.certain is certain
    assert ("RLEP reaches that at step 10" in found.headline()) is certain
    html = build_report([base, replay], tmp_path / "out").html.read_text()
    assert (
        "Whether RLEP reaches that sooner is not certain: at step 10 it has 30.0% [24.9, 35.1]" in html
    ) is not certain


def test_the_baseline_of_a_step_without_evaluation_is_the_last_before(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [(0, 0.1), (20, 0.3)], width=0.04)
    replay = write_run(tmp_path / "replay", [(0, 0.1), (15, 0.31)], replays=2, width=0.04)
    assert "31.0% [27.0, 35.0] there, the baseline 10.0% [6.0, 14.0]" in summary([base, replay]).headline()


def test_a_peak_that_is_not_reached_is_said(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [(0, 0.1), (20, 0.4)])
    replay = write_run(tmp_path / "replay", [(0, 0.1), (20, 0.3)], replays=2)
    found = summary([base, replay])
    assert found.crossing is not None
    assert found.crossing.rlep is None
    assert "RLEP has not reached that. Averaged over the steps, RLEP has 20.0% [10.0, 30.0]" in found.headline()


def test_live_replay_is_called_so(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [(0, 0.1), (20, 0.4)])
    live = write_run(tmp_path / "live", [(0, 0.1), (20, 0.3)], replays=2, replay_source="live")
    found = summary([base, live])
    assert found.rows()[1]["role"] == "live replay"
    assert "; live replay has not reached that. Averaged over the steps, live replay has 20.0%" in found.headline()
    html = build_report([base, live], tmp_path / "out").html.read_text()
    assert "and live replay&#39;s first that is not below it" in html
    assert "RLEP" not in html.partition("<script>")[0]


def test_curves_are_compared_where_both_were_evaluated(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [(0, 0.0), (10, 0.9), (20, 0.2)])
    replay = write_run(tmp_path / "replay", [(0, 0.0), (20, 0.4)], replays=1)
    means = summary([base, replay]).means
    assert means is not None
    assert [mean.avg for mean in means] == pytest.approx([0.2, 0.1])  # straight lines to 0.4 and to 0.2


def test_the_final_accuracy_has_the_most_samples_and_the_curve_the_usual(tmp_path: Path) -> None:
    run = write_run(tmp_path / "base", [(0, 0.1), (10, 0.2), (20, 0.3)])
    with EvaluationsLog(run / "evaluations.jsonl") as log:
        log.log(20, [evaluation(0.26, 16, "held-out")], wall_s=41.0)
    (row,) = summary([run]).runs
    assert (row.peak, row.final, row.final_samples) == (0.3, 0.26, 16)


def test_several_data_sources_are_told_by_the_row_of_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "base", [(0, 0.5), (20, 0.9)], source="easy")
    with EvaluationsLog(run / "evaluations.jsonl") as log:
        log.log(20, [evaluation(0.1, 4, "hard"), evaluation(0.4, 4, "all")], wall_s=41.0)
    found = summary([run])
    assert (found.data_source, found.runs[0].peak) == ("all", 0.4)


class Tags(HTMLParser):
    """Collects tags and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "action", "data")]


def test_the_page_is_whole_and_needs_nothing_from_outside(runs: list[Path], tmp_path: Path) -> None:
    written = build_report(runs, tmp_path / "out")
    html = written.html.read_text(encoding="utf-8")
    parsed = Tags()
    parsed.feed(html)
    # accuracy by step and clock, seconds of base and replay, groups by successes and replays, mass, log-probs, coverage
    assert parsed.tags.count("figure") == 9
    assert not {"link", "iframe", "object", "form", "img"} & set(parsed.tags)
    assert parsed.references == []
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for name in ("style", "script"):
        (held,) = re.findall(f"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{name}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;; ")
    assert parsed.tags.count("script") == 1
    assert "url(" not in html
    assert "@import" not in html
    for text in (
        "base",
        "replay",
        "imitation",
        "30.0% at step 10",
        "RLEP reaches that at step 10",
        "Collecting it took 1.0 minutes",
    ):
        assert text in html
    assert "in progress or interrupted" not in html
    drawn = ET.fromstring(written.svg.read_bytes())
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Held-out accuracy by step" in "".join(drawn.itertext())


def test_former_metrics_do_not_change_a_byte(tmp_path: Path) -> None:
    run = write_run(tmp_path / "base", [(0, 0.1)], done=2)
    first, lines = build_report([run], tmp_path / "a"), (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines.replace('"metrics":{', '"metrics":{"update/early":3,"group/rescued":0.5,'))
    second = build_report([run], tmp_path / "b")
    assert (first.html.read_bytes(), first.svg.read_bytes()) == (second.html.read_bytes(), second.svg.read_bytes())


def test_a_run_in_progress_gives_a_partial_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "young", [(0, 0.1)], replays=2, done=1)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "wall')  # being written right now
    html = build_report([run], tmp_path / "out").html.read_text()
    assert "young: in progress or interrupted, 1 of 20 steps on record" in html
    assert "No comparison yet" in html


@pytest.mark.parametrize(
    "content", [None, "nonsense\n{}\n", '{"step": 1}\n', "[1]\n", "\x00\n", '{"step": "x", "metrics": 3, "avg": 1}\n']
)
def test_missing_and_broken_files_are_notes(tmp_path: Path, content: str | None) -> None:
    run = tmp_path / "strange <b>run"
    run.mkdir()
    names = ("config.json", "manifest.json", "metrics.jsonl", "evaluations.jsonl", "events.jsonl", "collection.json")
    if content is not None:
        for name in names:
            (run / name).write_text(content)
    found = summary([run])
    assert found.runs[0].label == run.name
    assert (found.runs[0].steps, found.runs[0].peak, found.crossing) == (0, None, None)
    if content is None:
        assert found.notes == tuple(f"{run.name}: {name} is missing" for name in names[:5])
    elif content.startswith("nonsense"):
        assert len(found.notes) == 6
        assert f"{run.name}: metrics.jsonl: 2 damaged or overlong lines are left out" in found.notes


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "base", [(0, 0.1), (20, 0.2)])
    odd = {"pass": {"one": 1, "1": "x", "2": 0.25, "4": None}, "avg": 0.15, "ci": ["a", None]}
    with (run / "evaluations.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": 10, "n": 4} | row) + "\n" for row in (odd, {"avg": math.nan}))
    with (run / "metrics.jsonl").open("a") as file:
        values = {"time/step": math.inf, "logprob/fresh": math.nan, "loss/mean": 10**400, "old": {}, "lr": 2}
        file.write(json.dumps({"step": 20, "wall_s": math.nan, "metrics": values, "later": 1}) + "\n")
    found = load_runs([run])[0]
    assert [(row.step, row.avg) for row in found.evaluations] == [(0, 0.1), (20, 0.2), (10, 0.15)]
    assert found.evaluations[-1].passes == {2: 0.25}
    assert (found.table.wall_s[-1], found.table.line(20).numbers) == (0.0, {"lr": 2.0})
    build_report([run], tmp_path / "out")


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    run = tmp_path / "empty"
    run.mkdir()
    written = build_report([run], tmp_path / "out")
    assert "empty: metrics.jsonl is missing" in written.html.read_text()
    assert not written.svg.exists()


def test_text_from_runs_is_escaped_and_never_read_as_a_formula(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> $\\frac{"
    run = write_run(tmp_path / "base", [(0, 0.1), (20, 0.2)], source=evil)
    (run / "manifest.json").write_text(json.dumps({"command": "train", "argv": [evil], evil: evil}))
    config = {"run": {"name": evil, "steps": 20}, "note": '"><img src=x onerror=alert(1)>'}
    (run / "config.json").write_text(json.dumps(config))
    html = build_report([run], tmp_path / "out").html.read_text()
    parsed = Tags()
    parsed.feed(html)
    assert parsed.tags.count("script") == 1  # the page's own
    assert "img" not in parsed.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one run directory"):
        build_report([], tmp_path)
    with pytest.raises(DataError, match="typo is not a run directory"):
        build_report([tmp_path / "typo"], tmp_path)


def test_the_numbers_need_no_heavy_library(runs: list[Path]) -> None:
    code = (
        "import sys, pathlib; from rlep.view.record import load_runs; from rlep.view.summary import summary_of; "
        "summary_of(load_runs([pathlib.Path(p) for p in sys.argv[1:]])); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'redis', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code, *map(str, runs)], check=False).returncode == 0


def test_coverage_in_words(runs: list[Path]) -> None:
    collection = load_runs(runs)[-1].collection
    assert collection is not None
    assert collection.wall_s == 60.0
    assert coverage_text(collection).split(", ") == [
        "8 questions",
        "75% with an answer",
        "50% eligible for replay",
        "15 responses stored",
    ]
