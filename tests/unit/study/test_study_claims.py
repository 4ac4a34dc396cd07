"""What a study claims by: endpoints and their family, tuning by one of them, a grid of compute, several bases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rlep.cli import app
from rlep.core.errors import ConfigError
from rlep.study.study_plan import phases_of, read_study
from rlep.study.study_report import Comparison, comparisons, summary
from rlep.study.study_results import ArmRun, Point, read_arm
from rlep.view.samples import Samples
from rlep.view.study_tables import arm_rows, comparison_rows, tuning_rows
from tests.unit.study.made_up_study import MadeUp, base_of, conducted, study_file

pytestmark = pytest.mark.slow


def changed(file: Path, *pairs: tuple[str, str]) -> Path:
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return file


class Fading(MadeUp):
    """With ``update.lr = 0.1`` early successes that are lost, with 0.2 late ones that stay."""

    @staticmethod
    def samples(path: Path, step: int, right: int) -> None:
        # lr 0.1: 0.25, 0.5, 0 at steps 0, 2, 4: area 0.375, final 0. lr 0.2: 0.25, 0.25, 0.5: area 0.25, final 0.5
        rights = {1: {2: 2, 4: 0}, 2: {2: 1, 4: 2}}.get(right, {})
        MadeUp.samples(path, step, rights.get(step, 0))


@pytest.mark.parametrize(("endpoint", "chosen"), [("area", 0.1), ("final", 0.2), ("pass@2", 0.2)])
def test_tuning_chooses_by_the_endpoint_that_it_is_told(tmp_path: Path, endpoint: str, chosen: float) -> None:
    file = changed(study_file(tmp_path), ("tuning_seeds", f'tune_by = "{endpoint}"\ntuning_seeds'))
    assert conducted(file, Fading()).tuned == {"live": chosen}


def adjusted(rows: list[Comparison]) -> dict[tuple[str, str, str], float | None]:
    return {(row.endpoint, row.arm, row.control): row.p_holm for row in rows}


def test_holm_is_over_all_arms_at_all_claims(tmp_path: Path) -> None:
    eight = ("seeds = [1, 2]\n", "seeds = [1, 2, 3, 4, 5, 6, 7, 8]\n")
    single = adjusted(comparisons(conducted(changed(study_file(tmp_path / "single"), eight), MadeUp())))
    # all eight differences have one sign: p = 2 / 256, times the two arms
    assert single["area", "live", "none"] == single["final", "rlep", "none"] == pytest.approx(4 / 256)
    family = (eight[0], 'claims = ["pass@1", "area"]\n' + eight[1])
    found = conducted(changed(study_file(tmp_path / "family"), family), MadeUp())
    whole = adjusted(comparisons(found))
    claimed = [whole[endpoint, arm, "none"] for endpoint in ("pass@1", "area") for arm in ("live", "rlep")]
    assert claimed == pytest.approx([8 / 256] * 4)  # four claims
    assert [whole["final", "live", "none"], whole["area", "live", "more"]] == [None, None]
    assert summary(found)["claims"] == ["pass@1", "area"]
    finals = {row.endpoint: row.paired for row in comparisons(found) if (row.arm, row.control) == ("live", "none")}
    assert finals["pass@1"] == finals["final"]  # accuracy is pass@1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tuning_seeds", 'claims = ["pass@64"]\ntuning_seeds', r"pass@64 needs as many samples: evaluation\.samples is 32"),
        ("tuning_seeds", 'tune_by = "pass@33"\ntuning_seeds', r"pass@33 needs as many samples: evaluation\.samples is 32"),
        ("tuning_seeds", 'claims = ["pass@0"]\ntuning_seeds', r"study\.claims"),
        ("tuning_seeds", 'claims = ["area", "area"]\ntuning_seeds', "one comes twice"),
        ("tuning_seeds", 'bases = { a = {} }\ntuning_seeds', r"study\.bases has one base"),
        ("tuning_seeds", 'bases = { a = {}, b = { "run.seed" = 3 } }\ntuning_seeds', r"study\.bases\.b: run\.seed is set"),
        (
            "seeds = [1, 2]\ntuning_seeds",
            "bases = { a = {}, b = {}, c = {} }\nseeds = [1, 2, 3, 4, 5, 6, 7]\ntuning_seeds",
            "3 bases with 7 seeds: at most 20 in all",
        ),
        ("tuning_seeds", 'set = { "evaluation.compute" = [5.0] }\ntuning_seeds', r"study\.set: evaluation\.compute is set"),
    ],
)  # fmt: skip
def test_claims_and_bases_that_cannot_be_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conducted(changed(study_file(tmp_path), (old, new)), MadeUp())


def test_an_evaluation_stands_at_the_point_of_the_grid_that_its_step_reached(tmp_path: Path) -> None:
    study = read_study(study_file(tmp_path))
    conducted(tmp_path / "study.toml", MadeUp())
    plans = phases_of(study.study, study.arm[0], 1, base_of(study).files, ())
    # steps of 500, evaluated after 0, 2 and 4: step 2 went from 500 to 1000, step 4 from 1500 to 2000
    assert [point.compute for point in read_arm(plans, 2000, (900, 1800)).points] == [0, 900, 1800]
    assert [point.compute for point in read_arm(plans, 2000, (400, 1500)).points] == [0, 1000, 2000]
    (_, _, last) = plans = phases_of(study.study, study.arm[2], 1, base_of(study).files, ())
    assert last.command == "train"  # after 1300 of phase 1 and collection, its steps end at 1800, 2300, …
    assert [point.compute for point in read_arm(plans, 2500, (2250, 3000)).points] == [0, 1000, 1300, 2250, 3000]


def point(compute: float, count: int, first: list[int]) -> Point:
    """An evaluation whose questions have their first correct sample after so many wrong ones."""
    found = np.array([float(number < count) for number in first])
    samples = Samples(("a", "b", "c", "d"), found / count, found, found, count, np.array(first))
    return Point(compute, compute, int(compute), samples)


def test_lost_questions_are_counted_on_the_grid_and_by_as_many_samples() -> None:
    never = 99
    points = (
        point(0, 8, [0, never, never, never]),
        point(10, 8, [7, 1, never, never]),
        point(60, 8, [never, never, 3, never]),
        point(100, 64, [never, 2, 40, 50]),
    )
    run = ArmRun(("a", "b", "c", "d"), points, 100)
    # in halves: a at 0; b and a at 10, which holds at 50; c at 60 is looked at by none. With 8 samples the end has b alone.
    assert run.lost(100, 2) == (1, 2)
    # in tenths also c, which the first 8 of the 64 samples do not solve
    assert run.lost(100, 10) == (2, 3)
    assert ArmRun(("a", "b", "c", "d"), points[2:3], 100).lost(100, 10) == (0, 1)  # it began with a collection


def test_bases_are_crossed_with_seeds(tmp_path: Path) -> None:
    crossed = (
        'bases = { a = { "update.lr" = 0.1 }, b = { "update.lr" = 0.2, "model.path" = "elsewhere" } }\nseeds = [1, 2]\n'
    )
    file = changed(
        study_file(tmp_path),
        ("seeds = [1, 2]\n", crossed),
        ("tuning_seeds = [9]\n", ""),
        ('tune = { "update.lr" = [0.1, 0.2] }\n', ""),
    )
    run = MadeUp()
    found = conducted(file, run)
    assert {key[1] for key in found.runs} == {"a/1", "a/2", "b/1", "b/2"}
    study = read_study(file)
    (plan,) = phases_of(study.study, study.arm[0], "b/2", base_of(study).files, ())
    assert (str(plan.config.model.path), plan.config.update.lr, plan.config.run.seed) == ("elsewhere", 0.2, 2)
    later = phases_of(study.study, study.arm[2], "b/2", base_of(study).files, ())
    assert str(later[1].config.model.path) == str(later[0].last_model)  # which began with that base
    (row,) = [row for row in comparisons(found) if (row.arm, row.control, row.endpoint) == ("live", "none", "final")]
    # base a: one of b's two samples against none; base b: all of them in both arms
    assert row.by_base == pytest.approx({"a": 0.25, "b": 0.0})
    assert row.seeds == ("a/1", "a/2", "b/1", "b/2")
    assert row.paired.mean == pytest.approx(0.125)
    whole = summary(found)
    assert [base["name"] for base in whole["bases"]] == ["base model a", "base model b"]
    assert "a +25.00, b +0.00" in {row["by base"] for row in comparison_rows(whole)}


def test_the_base_model_is_in_the_table_and_a_t_interval_beside_the_bootstrap(tmp_path: Path) -> None:
    whole = summary(conducted(study_file(tmp_path), MadeUp()))
    # before the first step a is right in one of two samples, b in none
    assert whole["bases"] == [
        {"name": "base model", "final": 0.25, "samples": 2, "pass": 0.5, "pass_at": {"1": 0.25, "2": 0.5}}
    ]
    assert [(row["arm"], row["values"], row["seed"]) for row in whole["tuning"]] == [
        ("live", {"update.lr": lr}, 9) for lr in (0.1, 0.2)
    ]
    # of 2 × 2 samples b has one right with the smaller rate, both with the larger
    assert tuning_rows(whole) == [
        {"arm": "live", "tried": f'{{"update.lr": {lr}}}', "seeds": "1", "pass@1 %": one, "pass@2 %": "50.0"}
        for lr, one in ((0.1, "25.0"), (0.2, "50.0"))
    ]
    rows = arm_rows(whole)
    assert (rows[0]["arm"], rows[0]["final %"], rows[0]["pass@n %"]) == ("base model, 2 samples", "25.0", "50.0")
    assert (rows[1]["arm"], rows[1]["lost %"]) == ("none (control)", "100.0")
    (row,) = [
        row
        for row in comparison_rows(whole)
        if (row["endpoint"], row["arm"], row["against"]) == ("area", "live", "none")
    ]
    assert row["t over seeds"] == "+25.00 … +25.00"  # both seeds have +25


def test_pass_at_all_samples_is_told_once_where_it_is_claimed(tmp_path: Path) -> None:
    file = changed(study_file(tmp_path), ("seeds = [1, 2]\n", 'claims = ["pass@2"]\nseeds = [1, 2]\n'))
    told = [row["endpoint"] for row in comparison_rows(summary(conducted(file, MadeUp())))]
    assert (told.count("pass@2"), told.count("pass@n"), told.count("area")) == (4, 0, 4)


def test_the_base_models_row_is_the_mean_of_the_seeds_draws(tmp_path: Path) -> None:
    found = conducted(study_file(tmp_path), MadeUp())
    run = found.runs["none", 2]
    none = np.zeros(len(run.questions))
    drawn = replace(run.points[0], samples=replace(run.points[0].samples, accuracy=none, best=none))
    runs = {**found.runs, ("none", 2): replace(run, points=(drawn, *run.points[1:]))}
    # 0.25 in the first arm's seed 1, and nothing in its seed 2
    (base,) = summary(replace(found, runs=runs))["bases"]
    assert (base["final"], base["pass"], base["pass_at"]) == (0.125, 0.25, {"1": 0.125, "2": 0.25})


def test_a_report_with_a_failed_arm_ends_with_an_error_that_says_why(tmp_path: Path) -> None:
    conducted(study_file(tmp_path), MadeUp(fail="collect"))
    done = CliRunner().invoke(app, ["study", "report", str(tmp_path / "study.toml")])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "2 of 8 arms under seeds have no result: rlep, seed 1: " in said
    assert "collection.json does not say what the collection took" in said
    assert (tmp_path / "study" / "study.html").exists()


def test_a_kept_study_json_becomes_the_page_again(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    conducted(file, MadeUp())
    assert CliRunner().invoke(app, ["study", "report", str(file)]).exit_code == 0
    page = tmp_path / "again.html"
    done = CliRunner().invoke(app, ["study", "report", str(tmp_path / "study" / "study.json"), "--page", str(page)])
    assert done.exit_code == 0, done.output
    written, first = page.read_text(), (tmp_path / "study" / "study.html").read_text()
    phases = first.index("<h2>Phases</h2>")  # which are in the study's file, not in study.json
    assert written[: len(first[:phases].rstrip())] == first[:phases].rstrip()
    assert "Phases" not in written
    refused = CliRunner().invoke(app, ["study", "report", str(file), "--page", str(page)])
    assert refused.exit_code == 2
    assert "--page is for a study.json" in refused.output


def test_all_combinations_of_several_keys_are_tuned(tmp_path: Path) -> None:
    both = '{ "update.lr" = [0.1, 0.2], "replay.count" = [4, 2] }'
    run = MadeUp()
    found = conducted(changed(study_file(tmp_path), ('{ "update.lr" = [0.1, 0.2] }', both)), run)
    assert len(run.ran) == 4 + 2 * 6
    assert found.tuned == {"live": {"update.lr": 0.2, "replay.count": 4}}  # with 0.2 all alike: the first
    assert found.runs.keys() >= {("live", 1), ("live", 2)}
