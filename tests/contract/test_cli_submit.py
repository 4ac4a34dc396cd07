"""What `rlep submit` refuses before it uploads anything or asks a cluster."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlep.cli import app

LOCAL, ELSEWHERE = "http://127.0.0.1:1", "garbage"
TAKEN = (2, "error: garbage is not the address of a dashboard")
"""How a command ends that nothing is wrong with: its cluster is asked."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working directory with a config, a model directory and data, all named by relative paths."""
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    run = '[run]\ndirectory = "/shared/run"\n'
    (tmp_path / "own.toml").write_text(f'{run}[model]\npath = "model"\n[data]\ntrain = "train.jsonl"\n')
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def submitted(project: Path, *words: str, address: str = ELSEWHERE) -> tuple[int, str]:
    prefix = ["submit", "--address", address, "--working-dir", str(project), "--"]
    result = CliRunner().invoke(app, [*prefix, *words], env={"RAY_API_SERVER_ADDRESS": ""})  # submitting sets it
    said = result.stderr.partition(" (http://HEAD:8265)")[0].rstrip()
    return result.exit_code, said[max(said.find("error: "), 0) :]  # what is uploaded is listed before


@pytest.mark.parametrize("words", [["train", "own.toml", "--set", "run.steps=3"], ["pool", "stats", "--attach", "run"]])
def test_what_is_right_is_submitted(project: Path, words: list[str]) -> None:
    assert submitted(project, *words) == TAKEN


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian", "own.toml"], "rlep has no command trian; did you mean train?"),
        (
            ["train", "own.toml", "--set", "run.directory=runs/mine"],
            "run.directory = runs/mine is relative: a job runs in a copy of {project}, which Ray removes. "
            "Give an absolute path that the cluster's machines share",
        ),
        (["train", "gone.toml"], "config file {project}/gone.toml does not exist"),
        (["sft", "own.toml", "--set", "rollout.promts=3"], "unknown key rollout.promts; did you mean rollout.prompts?"),
        (
            ["collect", "own.toml", "--set", "model.path=gone"],
            "model.path = gone: there is no such path in {project}, which is copied to the job",
        ),
        (
            ["train", "own.toml", "--set", 'data.evaluation=["train.jsonl", "gone.jsonl"]'],
            "data.evaluation = gone.jsonl: there is no such path in {project}, which is copied to the job",
        ),
        (
            ["sft", "own.toml", "--set", "model.template_file=templates/own.jinja"],
            "model.template_file = templates/own.jinja: there is no such path in {project}, which is copied to the job",
        ),
        (
            ["evaluate", "model", "train.jsonl", "--config", "own.toml", "--set", "model.template_file=own.jinja"],
            "model.template_file = own.jinja: there is no such path in {project}, which is copied to the job",
        ),
        (
            ["evaluate", "gone", "train.jsonl", "--config", "own.toml"],
            "MODEL = gone: there is no such path in {project}, which is copied to the job",
        ),
    ],
)
def test_mistakes_are_refused_before_the_cluster_is_asked(project: Path, words: list[str], message: str) -> None:
    assert submitted(project, *words) == (2, f"error: {message.format(project=project)}")


def test_unknown_words_are_refused_as_the_command_itself_does(project: Path) -> None:
    code, said = submitted(project, "train", "own.toml", "--sett", "run.steps=3")
    assert code == 2
    assert "No such option: --sett" in said


def test_absolute_paths_are_known_only_where_the_cluster_is_this_machine(project: Path) -> None:
    words = ["train", "own.toml", "--set", "model.path=/gone/model"]
    assert submitted(project, *words) == TAKEN
    assert submitted(project, *words, address=LOCAL) == (2, "error: model.path = /gone/model: there is no such path")


def test_a_teacher_is_a_path_or_a_name_as_the_model_is(project: Path) -> None:
    words = ["train", "own.toml", "--set", "loss.kl_coef=1", "--set"]
    assert submitted(project, *words, "loss.teacher=org/big") == TAKEN
    code, said = submitted(project, *words, "loss.teacher=big")
    assert (code, said.startswith("error: loss.teacher = big: there is no such path in ")) == (2, True)


def test_a_path_that_git_ignores_is_refused_because_the_job_would_not_have_it(project: Path) -> None:
    (project / ".gitignore").write_text("/model/\n")
    words = ["train", "own.toml"]
    assert submitted(project, *words) == (
        2,
        f"error: model is ignored by git, so that a job's copy of {project} does not have it: take it out of .gitignore, or give "
        "an absolute path that the cluster's machines have",
    )
    assert submitted(project, *words, "--set", "model.path=/shared/model") == TAKEN
