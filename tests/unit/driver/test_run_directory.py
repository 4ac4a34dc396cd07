"""To which command and config a run's directory belongs, from when on, and what the refused one is told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import CheckpointError, ConfigError, DataError
from rlep.core.jsonl import read_lines
from rlep.driver.run_directory import Facts, RunDirectory
from tests.unit.driver.driver_values import config_of

FACTS = Facts("train", "model", "tok", "data")
OTHERS = [
    Facts("sft", "model", "tok", "data"),
    Facts("train", "other", "tok", "data"),
    Facts("collect", data_digest="new"),
]


def stepped(directory: Path, config: Config | None = None, facts: Facts = FACTS) -> None:
    """A run in ``directory`` that made one step and no checkpoint."""
    store = RunDirectory(directory, config or config_of(), facts)
    store.metrics.log(0, {})
    store.close()


@pytest.mark.parametrize("facts", OTHERS, ids=str)
def test_a_run_without_a_completed_step_leaves_its_directory_to_any_other(tmp_path: Path, facts: Facts) -> None:
    store = RunDirectory(tmp_path, config_of(), FACTS)
    store.evaluations.log(0, [{"avg": 0.5}], wall_s=1.0)  # the one before the first step
    store.close()
    changed = config_of(update={"lr": 1.0}, replay={"count": 1})
    store = RunDirectory(tmp_path, changed, facts)
    store.close()
    assert not store.resumed
    assert (tmp_path / "evaluations.jsonl").read_text() == ""
    assert json.loads((tmp_path / "config.json").read_text())["update"]["lr"] == 1.0
    assert json.loads((tmp_path / "manifest.json").read_text())["command"] == facts.command


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_damaged_records_of_a_run_without_a_step_are_written_anew(tmp_path: Path, name: str) -> None:
    RunDirectory(tmp_path, config_of(), FACTS).close()
    (tmp_path / name).write_text("{")
    RunDirectory(tmp_path, config_of(), FACTS).close()
    assert json.loads((tmp_path / name).read_text())


@pytest.mark.parametrize("progress", ["metrics.jsonl", "collection.jsonl", "checkpoints/step-000001/state.json"])
def test_a_step_a_collected_question_or_a_checkpoint_makes_it_the_runs(tmp_path: Path, progress: str) -> None:
    RunDirectory(tmp_path, config_of(), FACTS).close()
    (tmp_path / progress).parent.mkdir(exist_ok=True)
    (tmp_path / progress).write_text("{}\n")
    with pytest.raises(ConfigError, match="belongs to a run of another config"):
        RunDirectory(tmp_path, config_of(update={"lr": 1.0}), FACTS)


@pytest.mark.parametrize("name", ["model_digest", "tokenizer_digest", "data_digest"])
def test_a_directory_of_another_model_tokenizer_or_dataset_is_refused(tmp_path: Path, name: str) -> None:
    stepped(tmp_path)
    facts: dict[str, Any] = {"model_digest": "model", "tokenizer_digest": "tok", "data_digest": "data", name: "other"}
    with pytest.raises(CheckpointError, match=f"{name} .* now it is other.* to start another run, add: --set "):
        RunDirectory(tmp_path, config_of(), Facts("train", **facts))
    RunDirectory(tmp_path, config_of(), FACTS).close()  # a refusal leaves nothing locked


def test_another_config_is_refused_with_both_sides_and_the_options_that_help(tmp_path: Path) -> None:
    held = tmp_path / "my run"
    stepped(held)
    (tmp_path / "my run-2").mkdir()
    before = (held / "config.json").read_text()
    asked = config_of(replay={"count": 1, "only_below": 0.5}, update={"lr": 1.0}, run={"steps": 9})
    with pytest.raises(ConfigError) as refused:
        RunDirectory(held, asked, FACTS)
    elsewhere = shlex.quote(f'run.directory="{tmp_path / "my run-3"}"')
    assert str(refused.value).splitlines() == [
        f"{held} belongs to a run of another config, which has completed steps; nothing was changed",
        "  replay.count       in the directory: 2  in this command: 1",
        "  replay.only_below  in the directory: null  in this command: 0.5",
        "  update.lr          in the directory: 1e-06  in this command: 1.0",  # run.steps may change
        f"  to start another run, add: --set {elsewhere}",
        f"  to continue the run in {held}, add: --set replay.count=2 --set update.lr=1e-06 and leave out replay.only_below",
    ]
    assert (held / "config.json").read_text() == before


def test_the_options_that_start_another_run_are_taken(tmp_path: Path) -> None:
    held = tmp_path / "it's a run"
    stepped(held)
    with pytest.raises(ConfigError) as refused:
        RunDirectory(held, config_of(update={"lr": 1.0}), FACTS)
    line = next(line for line in str(refused.value).splitlines() if "another run, add" in line)
    assert load_config([], [shlex.split(line)[-1]]).run.directory == tmp_path / "it's a run-2"


def test_a_directory_of_another_command_is_refused(tmp_path: Path) -> None:
    stepped(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"belongs to `rlep train`, this command is `rlep sft`; .*--set .*/run-2"):
        RunDirectory(tmp_path / "run", config_of(), Facts("sft", "model", "tok", "data"))


def test_what_does_not_change_the_steps_may_change(tmp_path: Path) -> None:
    stepped(tmp_path)
    changed = config_of(
        run={"steps": 9, "name": "other"},
        rollout={"deadline_s": 7},
        evaluation={"every": 1},
        checkpoint={"every": 2},
        generator={"count": 2},
        learner={"restarts": 5},
    )
    store = RunDirectory(tmp_path, changed, FACTS)
    assert store.resumed
    assert json.loads((tmp_path / "config.json").read_text())["run"]["steps"] == 9
    store.close()


@pytest.mark.parametrize(("key", "value"), [("profile", "exact"), ("correct_at", 0.5), ("answer_after", "</t>")])
def test_what_decides_the_rewards_may_not_change_although_the_verifiers_may(
    tmp_path: Path, key: str, value: object
) -> None:
    begun = config_of(verifier={"profile": "python:mine:grade"})
    stepped(tmp_path, begun)
    RunDirectory(tmp_path, config_of(verifier={"profile": "python:mine:grade", "count": 2}), FACTS).close()
    with pytest.raises(ConfigError, match=rf"verifier\.{key}  in the directory: .*  in this command: \"?{value}"):
        RunDirectory(tmp_path, config_of(verifier={"profile": "python:mine:grade", key: value}), FACTS)


@pytest.mark.parametrize("key", ["lora_rank", "lora_alpha"])
def test_adapters_may_not_change_although_the_learner_may(tmp_path: Path, key: str) -> None:
    stepped(tmp_path, config_of(learner={"lora_rank": 8}))
    with pytest.raises(ConfigError, match=rf"learner\.{key}  in the directory: .*  in this command: 4"):
        RunDirectory(tmp_path, config_of(learner={"lora_rank": 8, key: 4}), FACTS)


@pytest.mark.parametrize(
    "section", [{"replay": {"schedule": "linear"}}, {"update": {"schedule": "cosine", "warmup": 1}}], ids=str
)
def test_steps_may_not_change_where_a_schedule_depends_on_them(tmp_path: Path, section: dict[str, Any]) -> None:
    stepped(tmp_path, config_of(**section))
    with pytest.raises(ConfigError, match=r"run\.steps  in the directory: 4  in this command: 9"):
        RunDirectory(tmp_path, config_of(**section, run={"steps": 9}), FACTS)


def test_another_tokenizer_is_accepted_when_told_another_model_never(tmp_path: Path) -> None:
    told = config_of(checkpoint={"accept": ["tokenizer", "data", "pool"]})
    stepped(tmp_path, told)
    with pytest.raises(CheckpointError, match=r'tokenizer_digest tok, now it is new: .*accept = \["tokenizer"\]'):
        RunDirectory(tmp_path, config_of(), Facts("train", "model", "new", "data"))
    RunDirectory(tmp_path, told, Facts("train", "model", "new", "data")).close()
    with pytest.raises(CheckpointError, match=r"model_digest model, now it is other: the file behind it has changed;"):
        RunDirectory(tmp_path, told, Facts("train", "other", "new", "data"))


def test_another_chat_template_is_refused_by_name_unless_told(tmp_path: Path) -> None:
    stepped(tmp_path, facts=Facts("train", "model", "tok", "data", template_digest="old"))
    changed = Facts("train", "model", "tok", "data", template_digest="new")
    with pytest.raises(CheckpointError, match=r'template_digest old, now it is new: .*accept = \["template"\]'):
        RunDirectory(tmp_path, config_of(), changed)
    told = config_of(checkpoint={"accept": ["template"]}, model={"system_prompt": "Think."})
    with pytest.raises(
        ConfigError, match=r"model\.system_prompt .*\n.*\n.*\n.*add: --set 'checkpoint.accept=\[\"template\"\]'"
    ):
        RunDirectory(tmp_path, config_of(model={"system_prompt": "Think."}), changed)
    RunDirectory(tmp_path, told, changed).close()
    assert json.loads((tmp_path / "manifest.json").read_text())["template_digest"] == "new"


def test_a_run_of_before_the_template_was_recorded_goes_on(tmp_path: Path) -> None:
    stepped(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["template_digest"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    RunDirectory(tmp_path, config_of(), Facts("train", "model", "tok", "data", template_digest="new")).close()


def test_a_learning_rate_is_changed_on_purpose_and_recorded(tmp_path: Path) -> None:
    stepped(tmp_path, config_of(update={"lr": 1e-6}))
    with pytest.raises(ConfigError, match=r"update\.lr  in the directory: 1e-06  in this command: 5e-07") as refused:
        RunDirectory(tmp_path, config_of(update={"lr": 5e-7}), FACTS)
    option = str(refused.value).rpartition("to continue it with what this command has, add: ")[2]
    assert shlex.split(option) == ["--set", 'checkpoint.accept=["update"]']
    told = config_of(update={"lr": 5e-7}, loss={"clip_high": 0.2}, checkpoint={"accept": ["update"]})
    for _ in range(2):  # the second time nothing differs any more
        RunDirectory(tmp_path, told, FACTS).close()
    (event,) = [one for one in read_lines(tmp_path / "events.jsonl") if one["event"] == "settings_changed"]
    assert event["changes"] == {"update.lr": [1e-6, 5e-7], "loss.clip_high": [0.28, 0.2]}
    RunDirectory(tmp_path, config_of(update={"lr": 5e-7}, loss={"clip_high": 0.2}), FACTS).close()


def test_what_is_no_matter_of_an_update_is_not_accepted_with_it(tmp_path: Path) -> None:
    stepped(tmp_path)
    told = config_of(rollout={"fresh": 8}, checkpoint={"accept": ["update"]})
    with pytest.raises(ConfigError, match=r"rollout\.fresh") as refused:
        RunDirectory(tmp_path, told, FACTS)
    assert "to continue it with what this command has" not in str(refused.value)


def test_another_teacher_is_another_run(tmp_path: Path) -> None:
    taught = {"kl_coef": 1.0, "kl_estimator": "k2"}
    stepped(tmp_path, config_of(loss=taught))
    told = config_of(loss=taught | {"teacher": Path("strong")}, checkpoint={"accept": ["update"]})
    with pytest.raises(ConfigError, match=r"loss\.teacher") as refused:
        RunDirectory(tmp_path, told, FACTS)
    assert "to continue it with what this command has" not in str(refused.value)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    store = RunDirectory(tmp_path, config_of(), FACTS)
    with pytest.raises(DataError, match="already running"):
        RunDirectory(tmp_path, config_of(), FACTS)
    store.close()


def test_what_another_command_holds_is_left_by_one_that_is_refused(tmp_path: Path) -> None:
    held = tmp_path / "runs" / "held"
    first = RunDirectory(held, config_of(), FACTS)
    with pytest.raises(DataError, match="being written by another process"):
        RunDirectory(held, config_of(), FACTS)
    assert {"events.jsonl", "config.json", "manifest.json"} <= {entry.name for entry in held.iterdir()}
    first.discard()
    assert [*tmp_path.iterdir()] == []


def test_discarding_a_run_with_a_step_removes_nothing_of_it(tmp_path: Path) -> None:
    stepped(tmp_path / "run")
    (tmp_path / "run" / "logs").mkdir()
    before = {entry.name for entry in (tmp_path / "run").iterdir()}
    RunDirectory(tmp_path / "run", config_of(), FACTS).discard()
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == before
    store = RunDirectory(tmp_path / "run", config_of(), FACTS)
    assert store.resumed
    store.close()


def test_another_grader_under_the_same_name_is_refused_with_its_changed_parts_unless_told(tmp_path: Path) -> None:
    stepped(tmp_path, facts=Facts("train", "model", "tok", "data", grader_digest="python:rw:f, rw 11, helper 22"))
    changed = Facts("train", "model", "tok", "data", grader_digest="python:rw:f, rw 11, helper 33")
    with pytest.raises(CheckpointError, match=r'grader_digest helper 22, now it is helper 33: .*accept = \["grader"\]'):
        RunDirectory(tmp_path, config_of(), changed)
    RunDirectory(tmp_path, config_of(checkpoint={"accept": ["grader"]}), changed).close()
    RunDirectory(tmp_path, config_of(), changed).close()


def test_a_run_of_before_the_grader_was_recorded_goes_on(tmp_path: Path) -> None:
    stepped(tmp_path)
    RunDirectory(tmp_path, config_of(), Facts("train", "model", "tok", "data", grader_digest="math 6")).close()


def test_an_empty_table_is_said_as_a_shell_and_toml_take_it(tmp_path: Path) -> None:
    stepped(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"add: --set 'model.template=\"none\"'"):
        RunDirectory(tmp_path / "run", config_of(model={"template": {"enable_thinking": False}}), FACTS)
    assert load_config([], ['model.template="none"']).model.template == {}
