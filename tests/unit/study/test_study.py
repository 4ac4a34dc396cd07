"""A study over made-up runs: what is refused, what is run, what the figures are, and that a kill changes none of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlep.cli import app
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, DataError
from rlep.study.conduct import found_in
from rlep.study.study_plan import PhasePlan, phases_of, read_study
from rlep.study.study_report import comparisons, summary, write_report
from rlep.study.study_results import arm_figures, read_arm
from rlep.view.state import complete_mark
from rlep.view.study_tables import read_report
from tests.unit.study.made_up_study import MadeUp, base_of, conducted, study_file

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_the_figures_by_hand(tmp_path: Path) -> None:
    run = MadeUp()
    found = conducted(study_file(tmp_path), run)
    assert found.tuned == {"live": 0.2}
    whole = {arm["name"]: arm["seeds"]["1"] for arm in summary(found)["arms"]}
    # none: 4 steps of 500. a: half right from 0 to step 2 (of 4): 0.25; b: never. Means over both questions.
    assert whole["none"]["compute"] == 2000
    assert whole["none"]["area"] == pytest.approx(0.125)
    assert (whole["none"]["final"], whole["none"]["pass"], whole["none"]["lost"]) == (0.0, 0.0, 1)
    # live: a as above; b all right from step 2 on: 0.5
    assert whole["live"]["area"] == pytest.approx((0.25 + 0.5) / 2)
    assert (whole["live"]["final"], whole["live"]["distinct"]) == (0.5, 1.0)
    # rlep pays 1000 for phase 1 and 300 for the collection: of phase 2 the budget pays for the first evaluation alone.
    # a: half right, but for the 300 of the collection; b: never
    assert whole["rlep"]["area"] == pytest.approx(0.5 * 0.85 / 2)
    assert whole["rlep"]["compute"] == 2000  # of 3300
    assert [point[:3] for point in whole["rlep"]["curve"]] == [
        [0.0, 0, 0.5],
        [1000.0, 2, 2.5],
        [1300.0, 2, 9.5],  # 2 s of phase 1, 7 of the collection
    ]
    assert not whole["none"]["short"]
    rows = {(row.arm, row.control, row.endpoint): row for row in comparisons(found)}
    assert rows["live", "none", "area"].paired.by_seed == pytest.approx((0.25, 0.25))
    assert rows["live", "none", "area"].paired.p == 0.5
    assert rows["live", "none", "area"].p_holm == 1.0  # two arms: the smaller of both, doubled
    assert rows["live", "more", "area"].p_holm is None
    assert rows["rlep", "none", "area"].paired.mean == pytest.approx(0.2125 - 0.125)
    # pass@n of the last evaluation: b alone is solved by live, nothing by none
    assert (whole["live"]["pass_at"], whole["live"]["curve"][-1][4]) == ({"1": 0.5, "2": 0.5}, 0.5)
    assert (whole["live"]["pass"], rows["live", "none", "pass"].paired.mean) == (0.5, 0.5)


def test_compute_counts_the_tokens_of_the_files(tmp_path: Path) -> None:
    study = read_study(study_file(tmp_path))
    conducted(tmp_path / "study.toml", MadeUp())
    plans = phases_of(study.study, study.arm[2], 1, base_of(study).files, ())
    slow = 0.0
    for plan in plans:
        if plan.command == "collect":
            slow += json.loads((plan.directory / "collection.json").read_text())["generated_tokens"]
        else:
            last = json.loads((plan.directory / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
            weights = {"compute/generated_tokens": 1, "compute/scored_tokens": 1, "compute/trained_tokens": 3}
            slow += sum(weight * last[name] for name, weight in weights.items())
    assert read_arm(plans, 2000).compute == slow == 3300


def test_equal_phases_run_once_and_complete_ones_not_again(tmp_path: Path) -> None:
    run = MadeUp()
    conducted(study_file(tmp_path), run, parallel=4)
    # two values × a tuning seed; for each of two seeds: none, more, phase 1, collect, phase 2, live
    assert len(run.ran) == 2 + 2 * 6
    assert len({*run.ran}) == len(run.ran)
    again = MadeUp()
    conducted(tmp_path / "study.toml", again)
    assert again.ran == []


def test_what_is_there_before_an_arm_is_shared_and_not_charged(tmp_path: Path) -> None:
    """Two donors for three seeds: 3 mod 2 and 1 mod 2 have the second, and it is run once."""
    file = study_file(tmp_path)
    text = file.read_text().replace("seeds = [1, 2]", "seeds = [1, 2, 3]")
    for line in ('name = "phase 1"\n', 'model = "phase 1"\n'):
        text = text.replace(line, line + "seeds = [50, 60]\n")
    file.write_text(text)
    run = MadeUp()
    found = conducted(file, run)
    seeds = [name.rpartition("-")[2] for name in run.ran]
    assert (seeds.count("50"), seeds.count("60")) == (2, 2)  # each a phase 1 and a collection
    study = read_study(file)
    first, second, third = (phases_of(study.study, study.arm[2], seed, base_of(study).files, ()) for seed in (1, 2, 3))
    assert [plan.directory for plan in first[:2]] == [plan.directory for plan in third[:2]]
    assert first[0].directory != second[0].directory
    assert first[2].config.pool.directory == first[1].config.pool.directory != second[2].config.pool.directory
    assert set(run.limits) == {2000.0, float("inf")}  # phase 2 has the whole budget
    assert [point.compute for point in found.runs["rlep", 1].points] == [0, 1000, 2000]
    assert (found.runs["rlep", 1].uncharged, found.runs["none", 1].uncharged) == (1300, 0)
    assert read_arm(first, 2000).uncharged == 1300
    mark = complete_mark(first[-1].directory)
    kept = json.loads(mark.read_text())
    mark.write_text(
        json.dumps({key: value for key, value in kept.items() if key != "uncharged"})
    )  # by an earlier version
    assert arm_figures(first, 2000).uncharged == 1300
    shutil.rmtree(first[1].directory)  # a donor's collection that was made elsewhere
    with pytest.raises(DataError, match="not run here, so what it took is not known"):
        read_arm(first, 2000)


def test_an_arm_that_is_not_charged_for_the_phases_of_another_has_figures_of_its_own(tmp_path: Path) -> None:
    """Of 2000, phase 1 takes 2 steps of 500 and the collection 300, which only the first arm pays for."""
    file = study_file(tmp_path)
    text = file.read_text()
    given = text[text.index('[[arm]]\nname = "rlep"') : text.index('[[arm]]\nname = "live"')].replace("rlep", "given")
    for line in ('name = "phase 1"\n', 'model = "phase 1"\n'):
        given = given.replace(line, line + "seeds = [2, 1]\n")  # 1 mod 2 and 2 mod 2: those of the arms
    file.write_text(f"{text}\n{given}")
    run = MadeUp()
    found = conducted(file, run)
    assert [point.compute for point in found.runs["rlep", 1].points] == [0, 1000, 1300, 2300, 3300]
    assert [point.compute for point in found.runs["given", 1].points] == [0, 1000, 2000]
    assert sorted(limit for limit in run.limits if limit < 2000) == [700, 700]
    assert len(run.ran) == 2 + 2 * 7  # phase 1 and the collection of both arms once


def test_kept_figures_of_a_published_study_with_donors_are_found() -> None:
    study = read_study(ROOT / "studies" / "countdown-4-pool.toml")
    (arm,) = (arm for arm in study.arm if arm.name == "rlep")
    base = ROOT / "rlep" / "quickstart" / "base.toml"
    *_, last = phases_of(study.study, arm.with_tuned(arm.candidates[0]), 51, [base], ())
    assert last.directory.name == "train-2c263cd48f2e-51"


@pytest.mark.parametrize("after", [1, 7])
def test_stopped_and_continued_it_is_the_same_study(tmp_path: Path, after: int) -> None:
    whole = write_report(conducted(study_file(tmp_path / "whole"), MadeUp()))
    run = MadeUp(stop_after=after)
    with pytest.raises(KeyboardInterrupt):
        conducted(study_file(tmp_path / "stopped"), run)
    assert run.stopped
    page = write_report(conducted(tmp_path / "stopped" / "study.toml", MadeUp()))
    for name in ("study.json", "study.html"):
        assert page.with_name(name).read_bytes() == whole.with_name(name).read_bytes()


def test_complete_arms_outlive_the_files_of_their_runs(tmp_path: Path) -> None:
    page = write_report(conducted(study_file(tmp_path), MadeUp()))
    before = page.with_name("study.json").read_bytes()
    phases = tmp_path / "study" / "phases"
    for directory in phases.iterdir():
        if directory.is_dir():
            shutil.rmtree(directory)
    again = MadeUp()
    found = conducted(tmp_path / "study.toml", again)
    assert again.ran == []
    assert write_report(found).with_name("study.json").read_bytes() == before
    marks = [mark for mark in phases.iterdir() if mark.read_text()]
    assert len(marks) == 2 + 2 * 4  # the last phase of each arm; phase 1 and the collection are no arm's last one
    kept = json.loads(marks[0].read_text())
    assert kept["questions"] == ["a", "b"]
    marks[0].write_text(json.dumps(kept | {"points": [kept["points"][0] | {"correct": [1]}]}))
    plans = [PhasePlan("train", marks[0].with_suffix(""), (), (), Config())]
    with pytest.raises(DataError, match="not one number for each of 2 questions"):
        arm_figures(plans, 2000)


def test_an_arm_that_fails_is_reported(tmp_path: Path) -> None:
    found = conducted(study_file(tmp_path), MadeUp(fail="collect"))
    assert {pipeline: why.reason for pipeline, why in found.failed.items()} == {
        ("rlep", 1): "exit code 1: out of luck",
        ("rlep", 2): "exit code 1: out of luck",
    }
    page = write_report(found).read_text()
    assert "rlep, seed 1: failed at collect: exit code 1: out of luck" in page
    study = read_study(tmp_path / "study.toml")
    later = found_in(study, base_of(study))  # `rlep study report`, from the files
    assert "collection.json does not say what the collection took" in later.failed["rlep", 1].reason
    assert later.runs.keys() == found.runs.keys()


def test_an_arm_that_could_not_be_tuned_is_reported_and_not_run(tmp_path: Path) -> None:
    run = MadeUp(fail_seed=9)
    found = conducted(study_file(tmp_path), run)
    assert found.failed.keys() == {("live", 1), ("live", 2)}
    assert "no value of update.lr has a result under every tuning seed" in found.failed["live", 1].reason
    assert len(run.ran) == 2 + 2 * 5


def changed(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("budget = 2000\n", "", r"study\.budget: is missing"),
        ("tuning_seeds = [9]", "tuning_seeds = [2]", r"seeds \[2\] are used for tuning and for testing"),
        ("tuning_seeds = [9]", "", r"arms that tune: live; tuning_seeds = \[\]"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "one comes twice"),
        ('"replay.source" = "live"', '"data.max_prompt_tokens" = 9', r"arms may not differ in data\.max_prompt_tokens"),
        ('"replay.source" = "live"', '"evaluation.samples" = 9', r"arms may not differ in evaluation\.samples"),
        ('"replay.source" = "live"', '"rollout.max_tokens" = 9', r"arms may not differ in rollout\.max_tokens"),
        ('"replay.source" = "live"', '"model.chat_template" = true', r"arms may not differ in model\.chat_template"),
        ("seeds = [1, 2]", f"seeds = {[*range(21)]}", r"study\.seeds: must have at most 20 values"),
        ('"replay.source" = "live"', '"run.seed" = 9', r"arm live, phase train: run\.seed is set by the study"),
        ('pool = "collect"', 'pool = "phase 1"', r"pool = 'phase 1' is no earlier collect phase"),
        ('model = "phase 1"', 'model = "phase 2"', r"model = 'phase 2' is no earlier train or sft phase"),
        ('name = "phase 2"', 'name = "phase 1"', "arm rlep has two phases phase 1"),
        ("control = true\n", "", r"study\.toml: a study compares arms with controls"),
        ('name = "more"', 'name = "none"', "two arms are called none"),
        (
            'model = "phase 1"',
            'model = "phase 1"\nseeds = [5]',
            r"seeds = \[5\], and phase 1 which it goes on from has \[\]",
        ),
        ('set = { "replay.count" = 0 }', "seeds = [5]\nset = {}", "arm none: its last phase is what is compared"),
        ('command = "collect"', 'command = "pray"', r"must be 'train', 'collect' or 'sft'"),
        ("[study]", "[study]\ncolour = 3", r"study\.colour: is not a known key"),
        ("seeds = [1, 2]", "seeds = []", r"study\.seeds: must have at least 1 value$"),
    ],
)
def test_a_wrong_study_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_study(changed(study_file(tmp_path), old, new))


def test_a_wrong_configuration_is_refused_before_anything_runs(tmp_path: Path) -> None:
    run = MadeUp()
    file = changed(study_file(tmp_path), "[0.1, 0.2]", "[0.1, -0.2]")
    with pytest.raises(ConfigError, match=r"arm live, phase train: update\.lr = -0\.2"):
        conducted(file, run)
    assert run.ran == []


def test_the_directory_of_another_study_is_refused_with_the_difference(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    conducted(file, MadeUp())
    with pytest.raises(ConfigError, match=r"another study: study\.budget: 2000\.0 there, 3000\.0 here"):
        conducted(changed(file, "budget = 2000", "budget = 3000"), MadeUp())


def test_a_study_that_an_earlier_version_began_goes_on(tmp_path: Path) -> None:
    file, run = study_file(tmp_path), MadeUp()
    conducted(file, MadeUp())
    plan = tmp_path / "study" / "plan.json"
    before = json.loads(plan.read_text())
    for key in ("tune_by", "evaluations", "claims", "bases"):
        del before["study"][key]
    plan.write_text(json.dumps(before))
    conducted(file, run)
    assert run.ran == []


def test_a_study_goes_on_from_another_working_directory_and_with_its_files_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conducted(study_file(tmp_path), MadeUp())
    run, elsewhere = MadeUp(), tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    conducted(Path("study.toml"), run)  # its base is base.toml
    elsewhere.mkdir()
    for name in ("study.toml", "base.toml"):
        (tmp_path / name).rename(elsewhere / name)
    conducted(Path("elsewhere/study.toml"), run)
    assert run.ran == []
    changed(elsewhere / "base.toml", "fresh = 4", "fresh = 8")
    with pytest.raises(ConfigError, match=r"another study: content of base\.0"):
        conducted(Path("elsewhere/study.toml"), run)


@pytest.mark.parametrize("content", ["", '{"study": {"na', "[]", "{}", '{"study": 3}', "\udc80"])
def test_a_plan_that_cannot_be_read_is_one_sentence_with_the_way_out(tmp_path: Path, content: str) -> None:
    file, run = study_file(tmp_path), MadeUp()
    conducted(file, MadeUp())
    plan = tmp_path / "study" / "plan.json"
    whole = plan.read_bytes()
    plan.write_text(content, errors="surrogateescape")
    with pytest.raises(ConfigError, match=rf"^{plan} does not say what study this is: .*; delete it if "):
        conducted(file, run)
    plan.unlink()
    conducted(file, run)
    assert (run.ran, plan.read_bytes()) == ([], whole)


def test_a_study_goes_on_with_the_grader_of_its_finished_runs_alone(tmp_path: Path) -> None:
    file, run = study_file(tmp_path), MadeUp()
    conducted(file, run)
    (trained, *_) = [name for name in run.ran if name.startswith("train")]
    (tmp_path / "study" / "phases" / trained / "manifest.json").write_text(
        json.dumps({"grader_digest": "python:rw:f, rw 11"})
    )
    with pytest.raises(ConfigError, match=r"was graded by python:rw:f, rw 11, now the grader is python:rw:f, rw 22"):
        conducted(file, run, grader="python:rw:f, rw 22")
    conducted(file, run, grader="python:rw:f, rw 11")


def test_a_changed_base_is_refused(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    conducted(file, MadeUp())
    changed(tmp_path / "base.toml", "fresh = 4", "fresh = 8")
    with pytest.raises(ConfigError, match=r"another study: content of base\.0: \"[0-9a-f]{16}\" there"):
        conducted(file, MadeUp())


def test_an_arm_may_begin_with_a_collection_and_may_be_too_dear(tmp_path: Path) -> None:
    text = study_file(tmp_path).read_text()
    first = text.index('[[arm]]\nname = "rlep"'), text.index('[[arm]]\nname = "live"')
    arm = """[[arm]]
name = "sft"
[[arm.phase]]
command = "collect"
[[arm.phase]]
command = "sft"
pool = "collect"
set = { "replay.count" = 2 }

"""
    found = conducted(study_file(tmp_path / "enough", text[: first[0]] + arm + text[first[1] :]), MadeUp())
    # 300 for the collection, 4 steps of 500: at 2000 the last evaluation is that of step 2, at 1300.
    # a: 0.5 until then; b: 0.5 (M > 0) from then on
    figures = summary(found)["arms"][2]["seeds"]["1"]
    assert figures["area"] == pytest.approx((0.5 * 1300 + 0.5 * 700) / 2000 / 2)
    poor = text.replace("budget = 2000", "budget = 299").replace(str(tmp_path / "study"), str(tmp_path / "poor"))
    first = poor.index('[[arm]]\nname = "rlep"'), poor.index('[[arm]]\nname = "live"')
    found = conducted(study_file(tmp_path / "poor", poor[: first[0]] + arm + poor[first[1] :]), MadeUp())
    assert "its earlier phases take 300 of a budget of 299" in found.failed["sft", 1].reason
    assert write_report(found).exists()


def test_a_value_that_could_not_be_tuned_is_named(tmp_path: Path) -> None:
    run = MadeUp(fail_rate=0.2)
    found = conducted(study_file(tmp_path), run)
    assert found.tuned == {"live": 0.1}
    (note,) = summary(found)["notes"]
    assert note.startswith("live 0.2, tuning seed 9: no result, so this value was not chosen")


def test_the_report_command_and_the_shipped_studies(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    conducted(file, MadeUp())
    done = CliRunner().invoke(app, ["study", "report", str(file)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "study" / "study.html").exists()
    shipped: Sequence[Path] = sorted((ROOT / "studies").glob("*.toml"))
    assert shipped
    for one in shipped:
        study = read_study(one)
        base = ROOT / "rlep" / "quickstart" / "base.toml"
        for arm in study.arm:
            assert phases_of(study.study, arm, study.study.seeds[0], [base], ())


def test_a_report_without_a_result_says_why_and_is_an_error(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    done = CliRunner().invoke(app, ["study", "report", str(file)])
    assert done.exit_code == 1
    assert "note: none, seed 1: failed at train: " in done.output
    assert ": not run yet" in done.output
    assert f"no arm of {file} is complete in {tmp_path / 'study'}: rlep study run {file} runs them" in done.output


def test_a_kept_report_outlives_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = study_file(tmp_path)
    kept = write_report(conducted(file, MadeUp())).with_name("study.json")
    before = kept.read_bytes(), kept.with_name("study.html").read_bytes()
    shutil.rmtree(tmp_path / "study" / "phases")
    done = CliRunner().invoke(app, ["study", "report", str(file)])
    assert (done.exit_code, "report: " in done.output) == (1, False)
    monkeypatch.setattr("rlep.cli.study.ending_signals", lambda: ())
    monkeypatch.setattr("rlep.study.study_runner.Commands", lambda *_: MadeUp(fail="train"))
    done = CliRunner().invoke(app, ["study", "run", str(file)])
    assert done.exit_code == 1
    assert "8 of 8 arms under seeds have no result: none, seed 1: exit code 1: out of luck" in done.output
    assert (kept.read_bytes(), kept.with_name("study.html").read_bytes()) == before


def test_a_study_of_one_seed_says_that_it_has_no_interval(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    file.write_text(file.read_text().replace("seeds = [1, 2]\n", "seeds = [1]\n"))
    page = write_report(conducted(file, MadeUp())).read_text()
    said = "every difference is that of two runs: one seed has no interval over seeds and no p"
    assert said in page
    assert "all sign patterns" not in page
    done = CliRunner().invoke(app, ["study", "report", str(tmp_path / "study" / "study.json")])
    assert done.exit_code == 0
    assert said in done.output
    rows = [line.split() for line in done.output.splitlines() if line.strip().startswith("area")]
    assert [row[-1] for row in rows] == ["–"] * len(rows)  # p
    assert all("one" in row and "…" not in row for row in rows)


@pytest.mark.parametrize("content", ["{", "[]", '{"arms": 3}', '{"arms": [], "comparisons": {}}'])
def test_what_is_no_study_json_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "study.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"has no arms and comparisons as a study\.json"):
        read_report(file)


def test_every_kept_study_json_is_read() -> None:
    kept = [file for file in (ROOT / "studies" / "results").glob("*.json") if '"comparisons"' in file.read_text()]
    assert len(kept) >= 6
    for file in kept:
        assert len(read_report(file)["arms"]) >= 2
