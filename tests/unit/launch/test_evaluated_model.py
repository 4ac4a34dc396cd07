"""``rlep evaluate RUN_DIR``: which checkpoint, which config, which data."""

import hashlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlep.config.schema import Config
from rlep.config.settings import dump_config, load_config
from rlep.core.errors import CheckpointError, ConfigError
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.run_state import RunState
from rlep.launch import evaluate as module
from rlep.launch.evaluate import choose_model, evaluate

METRIC = "evaluation/all/avg"


def checkpoint(run: Path, step: int, score: float | None) -> Path:
    path = run / "checkpoints" / f"step-{step:06d}"
    (path / "model").mkdir(parents=True)
    state = json.dumps(asdict(RunState(step, "d", "t", "", METRIC, score, grader_digest="math 6, sympy 1.13"))).encode()
    (path / "state.json").write_bytes(state)
    digest = hashlib.blake2b(state, digest_size=16).hexdigest()
    (path / "files.json").write_text(json.dumps({"state.json": digest}))
    return path


def run_of(directory: Path, *settings: str) -> Path:
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "config.json").write_text(dump_config(load_config([], ["rollout.max_tokens=700", *settings])))
    return directory


def test_the_best_checkpoint_is_taken_where_the_run_kept_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", f"checkpoint.best={METRIC}", 'data.evaluation=["held.jsonl"]')
    best = checkpoint(run, 10, 0.4)
    checkpoint(run, 20, 0.3)
    chosen = choose_model(run, [], [], ["evaluation.samples=3"])
    assert chosen.path == best / "model"
    assert chosen.notes == (f"best checkpoint of {run}: step 10",)
    assert (chosen.data, chosen.grader_digest) == ((Path("held.jsonl"),), "math 6, sympy 1.13")
    assert (chosen.config.rollout.max_tokens, chosen.config.evaluation.samples) == (700, 3)  # the run's, and --set


def test_else_the_last_intact_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    last = checkpoint(run, 10, None)
    (checkpoint(run, 20, None) / "state.json").write_text("{}")  # torn
    chosen = choose_model(run, [Path("held.jsonl")], [], [])
    assert (chosen.path, chosen.notes) == (last / "model", (f"last checkpoint of {run}: step 10",))


def test_config_files_stand_in_for_the_run_s_own(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    checkpoint(run, 10, None)
    (tmp_path / "own.toml").write_text("[rollout]\nmax_tokens = 900\n")
    chosen = choose_model(run, [Path("held.jsonl")], [tmp_path / "own.toml"], [])
    assert chosen.config.rollout.max_tokens == 900


def test_a_run_without_checkpoint_and_an_evaluation_without_data_are_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    with pytest.raises(CheckpointError, match="has no intact checkpoint"):
        choose_model(run, [Path("held.jsonl")], [], [])
    with pytest.raises(ConfigError, match="nothing to evaluate on"):
        choose_model(run, [], [], [])


def test_a_model_directory_is_taken_as_it_is_and_the_training_file_is_said(tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    train.touch()
    (tmp_path / "link.jsonl").symlink_to(train)
    chosen = choose_model(tmp_path, [tmp_path / "link.jsonl"], [], [f'data.train="{train}"'])
    assert chosen.path == tmp_path
    assert chosen.notes == (
        f"{tmp_path / 'link.jsonl'} is the training file: this accuracy says nothing about unseen questions",
    )


def asked(monkeypatch: pytest.MonkeyPatch, directory: Path, config: Config) -> Config:
    """What ``rlep evaluate`` goes on with, as it asks for a model."""
    found: list[Config] = []

    class Asked(Exception):
        pass

    def ask(config: Config, *_: object, **__: object) -> None:
        found.append(config)
        raise Asked

    monkeypatch.setattr(module, "resolve", ask)
    with pytest.raises(Asked):
        evaluate(
            config,
            directory,
            [Path("held.jsonl")],
            directory / "out",
            cast(Any, SimpleNamespace(note=None, phase=None)),
        )
    return found[0]


@pytest.mark.parametrize(
    ("now", "said"), [("math 7, sympy 1.13", ["graded by math 7, the run was by math 6"]), ("", [])]
)
def test_another_grader_than_the_run_s_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str, said: list[str]
) -> None:
    notes: list[str] = []
    before = "math 6, sympy 1.13"
    monkeypatch.setattr(module, "resolve", lambda config, *_, **__: config)
    monkeypatch.setattr(module, "check_inputs", lambda *_: SimpleNamespace(grader_digest=now or before))
    monkeypatch.setattr(module, "check_start", lambda *_: None)
    monkeypatch.setattr(module, "_evaluate", lambda *_: None)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_async", stop)
    progress = cast(Any, SimpleNamespace(note=notes.append, phase=None, stopping=None))
    with pytest.raises(KeyboardInterrupt):
        evaluate(load_config([], []), tmp_path, [], tmp_path / "out", progress, graded_by=before)
    assert [note.partition(":")[0] for note in notes] == said


def test_training_data_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a run that was copied to a machine without network may be gigabytes of the hub."""
    data = asked(monkeypatch, tmp_path, load_config([], ['data.train="hf:org/absent:train"'])).data
    assert (data.train, data.evaluation) == ((), (Path("held.jsonl"),))


def test_two_evaluations_have_two_names_on_their_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [asked(monkeypatch, tmp_path, load_config([], [])).run.name for _ in range(2)]
    assert len({*names}) == 2
    assert all(re.fullmatch("evaluate-[0-9a-f]{8}", name) for name in names)


STRANGERS = (
    'cluster.address="203.0.113.7:6379"',
    'generator.engine={ download_dir = "/elsewhere" }',
    "generator.count=64",
    "verifier.workers=1024",
    'tracking.sinks=["wandb"]',
    'pool.url="grpc://203.0.113.7:7171"',
    'pool.token_file="/home/me/.token"',
    'data.evaluation=["held.jsonl"]',
)


def test_of_an_archive_s_config_an_evaluation_takes_no_address_engine_argument_or_resource(tmp_path: Path) -> None:
    """Files that were unpacked belong to whoever unpacked them: owner and mode say nothing about who wrote them."""
    run = run_of(tmp_path / "run", *STRANGERS, "evaluation.samples=5", 'model.template={ "a.b" = 1 }')
    checkpoint(run, 10, None)
    chosen = choose_model(run, [], [], [])
    left = load_config([], [])
    assert chosen.config.cluster == left.cluster
    assert (chosen.config.pool, chosen.config.tracking) == (left.pool, left.tracking)
    assert (chosen.config.generator, chosen.config.verifier) == (left.generator, left.verifier)
    assert (chosen.config.rollout.max_tokens, chosen.config.evaluation.samples) == (700, 5)
    assert chosen.config.model.template == {"a.b": 1}
    assert chosen.data == (Path("held.jsonl"),)
    assert 'left out cluster.address = "203.0.113.7:6379", generator.count = 64' in chosen.notes[1]
    named = choose_model(run, [], [], ["cluster.address=auto"])
    assert named.config.cluster.address == "auto"
    assert "cluster.address" not in named.notes[1]


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ('verifier.profile="judge:/elsewhere/judge.toml"', "verifier.profile"),
        ('verifier.profile="python:stranger:reward"', "verifier.profile"),
        ('verifier.profile="python:rlep.x:ok,2*stranger:reward"', "verifier.profile"),
        ('environment.factory="stranger:Game"', "environment.factory"),
    ],
)
def test_code_and_judges_of_an_archive_s_config_are_named_by_the_command_or_not_used(
    tmp_path: Path, setting: str, key: str
) -> None:
    run = run_of(tmp_path / "run", setting)
    checkpoint(run, 10, None)
    with pytest.raises(ConfigError, match=rf"its {key} = .* is not used: .* --set '?{key}="):
        choose_model(run, [Path("held.jsonl")], [], [])
    chosen = choose_model(run, [Path("held.jsonl")], [], [setting])
    assert getattr(chosen.config, key.split(".", maxsplit=1)[0]) != getattr(Config(), key.split(".", maxsplit=1)[0])


@pytest.mark.parametrize("others", ["mode", "owner"])
def test_files_are_not_read_by_a_config_that_another_user_can_write(tmp_path: Path, others: str) -> None:
    run = run_of(tmp_path / "run", 'data.evaluation=["/home/me/letters.jsonl"]', 'model.template_file="/home/me/key"')
    checkpoint(run, 10, None)
    assert choose_model(run, [], [], []).data == (Path("/home/me/letters.jsonl"),)
    if others == "mode":
        (run / "config.json").chmod(0o666)
    elif os.geteuid() == 0:
        os.chown(run, 12345, -1)
    else:
        pytest.skip("only root gives files away")
    with pytest.raises(ConfigError, match=r'its model.template_file = "/home/me/key" is not used'):
        choose_model(run, [], [], [])
    with pytest.raises(
        ConfigError, match=r'left out data.evaluation = \["/home/me/letters.jsonl"\](.|\n)*nothing to eval'
    ):
        choose_model(run, [], [], ['model.template_file="none"'])


def test_a_run_of_this_user_s_is_evaluated_with_all_that_it_has_until_somebody_changes_it(tmp_path: Path) -> None:
    config = load_config([], [*STRANGERS, 'verifier.profile="python:rewards:reward"'])
    RunDirectory(tmp_path / "run", config, Facts("train")).close()
    run = tmp_path / "run"
    checkpoint(run, 10, None)
    chosen = choose_model(run, [], [], ["generator.count=1"])
    assert chosen.config == config.with_values(generator={"count": 1})
    assert chosen.notes == (f"last checkpoint of {run}: step 10",)
    changed = (run / "config.json").read_text().replace("203.0.113.7:6379", "203.0.113.9:6379")
    (run / "config.json").write_text(changed)
    with pytest.raises(ConfigError, match="was not written by rlep as this user, or has changed since"):
        choose_model(run, [], [], [])


@pytest.mark.parametrize("content", ["[" * 100_000, "{}" * 2**23 + "{", "null"])
def test_a_config_that_is_none_is_said_in_a_sentence(tmp_path: Path, content: str) -> None:
    run = run_of(tmp_path / "run")
    (run / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config.json is damaged"):
        choose_model(run, [Path("held.jsonl")], [], [])


def test_a_config_behind_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    (run / "config.json").rename(tmp_path / "other.json")
    (run / "config.json").symlink_to(tmp_path / "other.json")
    with pytest.raises(CheckpointError, match="is a link, which is not followed"):
        choose_model(run, [Path("held.jsonl")], [], [])
