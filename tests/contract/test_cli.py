"""What the command line says of mistakes: one sentence, exit code 2, before any actor starts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from typer.testing import CliRunner

from rlep.check.inputs import Subject
from rlep.cli import app
from rlep.config.settings import load_config
from tests.contract.cli_values import MODEL, ROWS, arguments, jsonl, opened


def mistake(words: Sequence[str], *, lines: int = 1) -> str:
    """The sentence on standard error, or its lines; checks the exit code and that no actor was started."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == lines
    assert "Traceback" not in result.stderr
    assert not ray.is_initialized()
    return result.stderr.removeprefix("error: ").strip()


def test_a_mistake_ends_a_real_process_with_2_and_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlep", "train", str(tmp_path / "gone.toml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: config file {tmp_path / 'gone.toml'} does not exist\n"


@pytest.mark.parametrize("command", ["train", "collect", "sft", "plan"])
def test_an_unknown_key_is_refused_by_every_command(command: str, config: str) -> None:
    assert mistake([command, config, "--set", "rollout.promts=3"]) == (
        "unknown key rollout.promts; did you mean rollout.prompts?"
    )


@pytest.mark.parametrize("key", ['data.train="{}"', 'data.evaluation=["{}"]'])
def test_a_missing_dataset_is_named(key: str, config: str, overrides: list[str], tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.parquet")
    assert gone in mistake(arguments("train", config, [*overrides, key.format(gone)]))


def test_wrong_columns_are_answered_with_those_found(config: str, overrides: list[str], tmp_path: Path) -> None:
    path = tmp_path / "wrong.parquet"
    pq.write_table(pa.table({"instruction": ["2 + 2?"], "output": ["4"]}), path)
    message = mistake(arguments("train", config, [*overrides, f'data.train="{path}"']))
    assert str(path) in message
    assert "instruction" in message
    assert "output" in message


def test_rows_without_references_are_named(config: str, overrides: list[str], tmp_path: Path) -> None:
    rows: list[dict[str, str | None]] = [{"problem": "2 + 2?", "answer": None}, {"problem": "3 + 3?", "answer": " "}]
    path = jsonl(tmp_path / "bare.jsonl", rows)
    train = [*overrides, f'data.train="{path}"']
    assert mistake(arguments("train", config, train), lines=4).splitlines() == [
        f"{path}: 2 of 2 rows (100.0 %) have no usable question or answer, and are left out",
        '  line 1: "answer" is null',
        '  line 2: "answer" is blank',
        "these are more than data.max_bad_rows = 5 %: fix the rows, or allow a larger share",
    ]
    message = mistake(arguments("train", config, [*train, "data.max_bad_rows=1"]))
    assert message == f"{path}: no usable question: 2 rows, 0 without question, 2 without reference"


def test_check_names_the_rows_that_are_left_out(config: str, overrides: list[str], tmp_path: Path) -> None:
    path = jsonl(tmp_path / "own.jsonl", [*ROWS, {"problem": "2 + 2?", "anwser": "4"}])
    settings = [*overrides, f'data.train="{path}"', "data.max_bad_rows=0.2"]
    result = CliRunner().invoke(app, arguments("check", config, settings))
    assert [line for line in result.stdout.splitlines() if " questions: " in line] == [
        f"ok      questions: {path}: 1 of 5 rows (20.0 %) have no usable question or answer, and are left out",
        'ok      questions:   line 5: no "answer", but "anwser"',
    ]


def test_check_names_conflicts_and_text_without_tokens(config: str, overrides: list[str], tmp_path: Path) -> None:
    odd = [{"problem": "1 + 1", "answer": "3"}, {"problem": "What is 5 + 1?", "answer": "6"}]
    path = jsonl(tmp_path / "own.jsonl", [*ROWS, *odd])
    result = CliRunner().invoke(app, arguments("check", config, [*overrides, f'data.train="{path}"']))
    assert [line.partition(" questions: ")[2] for line in result.stdout.splitlines() if " questions: " in line] == [
        "1 question with two or more references, each kept as a prompt of its own:",
        "  1 + 1",
        "1 of 6 questions holds text that the tokenizer does not know, e.g. What is 5 + 1?",
    ]


def test_an_empty_file_has_no_rows(config: str, overrides: list[str], tmp_path: Path) -> None:
    path = jsonl(tmp_path / "empty.jsonl", [])
    message = mistake(arguments("train", config, [*overrides, f'data.train="{path}"']))
    assert message == f"{path}: no usable question: there are no rows"


def test_prompts_over_the_limit_are_counted_with_the_shortest(config: str, overrides: list[str]) -> None:
    message = mistake(arguments("train", config, [*overrides, "data.max_prompt_tokens=3"]))
    assert "4 over the limit of 3 prompt tokens (the shortest has " in message


@pytest.mark.parametrize("command", ["train", "plan"])
def test_more_prompts_a_step_than_questions_is_refused(command: str, config: str, overrides: list[str]) -> None:
    message = mistake(arguments(command, config, [*overrides, "rollout.prompts=5"]))
    assert message.startswith("a step uses 5 prompts, the dataset has 4")


@pytest.mark.parametrize("command", ["train", "collect"])
def test_a_missing_model_is_named(command: str, config: str, overrides: list[str], tmp_path: Path) -> None:
    message = mistake(arguments(command, config, [*overrides, f'model.path="{tmp_path / "gone"}"']))
    assert message.startswith(f"{tmp_path / 'gone'}: no such model directory, nor a name of the form ORG/NAME")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("tokenizer.json",), "no tokenizer; expected one of tokenizer.json, "),
        (("config.json",), "no config.json, so this is not a model directory"),
        (("model.safetensors",), "no *.safetensors weights (other formats are not read)"),
    ],
)
def test_what_a_model_lacks_is_named(
    config: str, overrides: list[str], tmp_path: Path, without: tuple[str, ...], message: str
) -> None:
    model = shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns(*without))
    assert mistake(arguments("train", config, [*overrides, f'model.path="{model}"'])).startswith(f"{model}: {message}")


def test_prompt_and_response_over_the_context_are_refused(config: str, overrides: list[str]) -> None:
    message = mistake(arguments("train", config, [*overrides, "rollout.max_tokens=89"]))
    assert message == (
        "data.max_prompt_tokens = 40 and rollout.max_tokens = 89 need a context of 129 tokens, "
        f"{MODEL} has 128; lower one of them"
    )


def test_prompt_and_response_that_fill_the_context_are_taken(overrides: list[str]) -> None:
    Subject(load_config([], [*overrides, "rollout.max_tokens=88"])).inputs()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("update.prompts=3", "update.prompts = 3 does not divide rollout.prompts = 2"),
        ("replay.require=true", "replay.require = true needs replay.count, not 0"),
        ("loss.surrogate=cispo", 'loss.surrogate = "cispo" with loss.dual_clip = 10'),
        (
            "generator.gpus=1,generator.tensor_parallel=2",
            "generator.tensor_parallel = 2 on GPUs needs generator.gpus = 2",
        ),
        ("generator.gpus=0.5", "generator.tensor_parallel = 1 on GPUs needs generator.gpus = 1"),
        ("learner.gpus=0.5", "learner.gpus = 0.5: a rank computes on one GPU"),
        ("learner.gpus=2", "learner.gpus = 2: a rank computes on one GPU"),
        ("generator.tensor_parallel=3", f"generator.tensor_parallel = 3: {MODEL} has 2 attention heads"),
        ('learner.lora_rank=4,learner.lora_targets=["qv"]', "learner.lora_targets: no linear layer of"),
        ("cluster.placement=colocated,learner.ranks=2", 'cluster.placement = "colocated" with learner.ranks = 2'),
        ("generator.transfer=nccl", 'generator.transfer = "nccl" needs generator.gpus, not 0'),
    ],
)
def test_settings_that_cannot_go_together_are_refused(
    config: str, overrides: list[str], override: str, message: str
) -> None:
    assert mistake(arguments("train", config, [*overrides, *override.split(",")])).startswith(message)


def test_sft_needs_replays(config: str, overrides: list[str]) -> None:
    assert mistake(arguments("sft", config, overrides)).startswith("sft trains on replays: set replay.count")
    twice = [*overrides, "replay.count=2", "update.epochs=2"]
    assert mistake(arguments("sft", config, twice)).startswith(
        "sft draws responses anew in every step: set update.epochs"
    )
    taught = [*overrides, "replay.count=2", "loss.kl_coef=1", "loss.teacher=big"]
    assert mistake(arguments("sft", config, taught)).endswith(
        'for nothing: set loss.teacher = "none" and loss.kl_coef = 0'
    )
    alone = [*overrides, "replay.count=2", "loss.kl_coef=1"]
    assert mistake(arguments("sft", config, alone)) == (
        "sft imitates stored responses alone, and would hold a reference for nothing: set loss.kl_coef = 0"
    )


@pytest.fixture
def held(overrides: list[str]) -> Path:
    """The directory of a training run with these settings, after its first step."""
    store = opened(overrides, "train")
    store.metrics.log(0, {})
    store.close()
    return store.path


def test_a_directory_of_another_config_names_what_differs(config: str, overrides: list[str], held: Path) -> None:
    before = (held / "config.json").read_text()
    result = CliRunner().invoke(app, arguments("train", config, [*overrides, "update.lr=0.5", "run.steps=9"]))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"error: {held} belongs to a run of another config, which has completed steps; nothing was changed",
        "  update.lr  in the directory: 1e-06  in this command: 0.5",  # run.steps may change
        f"  to start another run, add: --set 'run.directory=\"{held}-2\"'",
        f"  to continue the run in {held}, add: --set update.lr=1e-06",
        "  to continue it with what this command has, add: --set 'checkpoint.accept=[\"update\"]'",
    ]
    assert (held / "config.json").read_text() == before
    assert not ray.is_initialized()


def test_a_directory_of_another_command_is_not_taken(config: str, overrides: list[str], held: Path) -> None:
    message = mistake(arguments("collect", config, overrides))
    assert message == (
        f"{held} belongs to `rlep train`, this command is `rlep collect`; "
        f"to give it a directory of its own, add: --set 'run.directory=\"{held}-2\"'"
    )


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_a_damaged_directory_is_named(config: str, overrides: list[str], held: Path, name: str) -> None:
    (held / name).write_text("{")
    result = CliRunner().invoke(app, arguments("train", config, overrides))
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"error: {held / name} is damaged: restore it, or choose another run.directory (Expecting"
    )


def test_another_dataset_is_a_fault_of_the_run(config: str, overrides: list[str], held: Path, tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", ROWS[:3])
    result = CliRunner().invoke(app, arguments("train", config, overrides))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {held} was made with data_digest ")


RULES = {
    "rw_mine.py": "from rw_help import right\ndef f(reference, response): return right()\n",
    "rw_help.py": "right = bool\n",
}


@pytest.mark.parametrize("changed", ["rw_mine", "rw_help"])
def test_a_run_does_not_go_on_with_another_grader_under_the_same_name(
    changed: str, config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in RULES.items():
        (tmp_path / name).write_text(text)
    mine, file = [*overrides, "verifier.profile=python:rw_mine:f"], tmp_path / f"{changed}.py"
    store = opened(mine, "train")
    store.metrics.log(0, {})
    store.close()
    text = file.read_text()
    file.write_text(f"{text}# the opposite\n")
    result = CliRunner().invoke(app, arguments("train", config, mine))
    said = result.stderr.splitlines()[-1]
    assert result.exit_code == 1
    assert said.startswith(f"error: {store.path} was made with grader_digest {changed} ")
    assert 'checkpoint.accept = ["grader"] goes on nevertheless' in said
    file.write_text(text)
    opened(mine, "train").close()


def test_plan_of_a_whole_set_of_inputs(config: str, overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "collection.json").write_text(json.dumps({"answers_per_question": [1, 1, 2]}))
    evaluation = f'data.evaluation=["{jsonl(tmp_path / "held.jsonl", ROWS[:2])}"]'
    words = arguments("plan", config, [*overrides, evaluation, "replay.count=2", "run.steps=1"])
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["missing"] == []
    assert (plan["data"]["rows"], plan["data"]["questions"]) == (4, 4)
    assert plan["step"]["sequences"] == 12  # 2 x (4 + 2)
    assert plan["step"]["steps_per_epoch"] == 2
    assert plan["replay"]["eligible"] == 2
    assert plan["replay"]["per_group"] == 1.0  # 2 of 4 questions give 2
    assert plan["replay"]["share_expected"] == 0.2
    assert plan["evaluation"]["samples"] == 128  # before and after, 2 questions, 32 answers
    assert plan["memory"]["parameters"] == 109_888
    assert plan["learner"]["state_bytes"] == 12 * 109_888
    assert plan["learner"]["peak_bytes"] > plan["learner"]["state_bytes"] + plan["learner"]["gradient_bytes"]
    assert plan["fits"] is True
    assert plan["reason"].endswith(" of host memory in all")
    table = CliRunner().invoke(app, words)
    assert "4 questions from 4 rows" in table.stdout
    assert "2 updates of 1 prompt (6 sequences)" in table.stdout
    assert "2 of 4 questions" in table.stdout


def test_plan_says_what_is_missing_and_plans_the_rest(config: str) -> None:
    result = CliRunner().invoke(app, ["plan", config, "--set", "replay.count=2", "--set", "model.path=nowhere"])
    assert result.exit_code == 0, result.output
    assert "9,216" in result.stdout
    assert "8 updates of 64 prompts" in result.stdout
    assert [line.split(":")[1].split()[0] for line in result.stdout.splitlines() if line.startswith("missing:")] == [
        "model.path",
        "dataset",
        "pool",
    ]


@pytest.mark.parametrize("size", ["inf", "1e300", "nan", "0.5"])
def test_plan_for_gpus_of_a_size_that_none_has_is_refused(config: str, size: str) -> None:
    result = CliRunner().invoke(app, ["plan", config, "--gpu-memory", size])
    assert (result.exit_code, result.stdout) == (2, "")
    limit = "less than or equal to 1000000" if size != "0.5" else "greater than or equal to 1"
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"Invalid value for '--gpu-memory': Input should be {limit}" in said


def test_plan_refuses_a_directory_without_a_model_as_check_does(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    message = mistake(arguments("plan", config, [*overrides, f"model.path={tmp_path / 'empty'}"]))
    assert message == f"{tmp_path / 'empty'}: no config.json, so this is not a model directory"
    message = mistake(arguments("plan", config, [*overrides, "loss.kl_coef=1", "loss.teacher=gone"]))
    assert message == "loss.teacher = gone: no such directory, nor a name of the form ORG/NAME of the hub"


A3B = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
REFUSED_SHAPES = [
    (A3B, "mixture-of-experts models are not trained by rlep"),
    ({"model_type": "gpt_oss", "num_local_experts": 32}, "mixture-of-experts models are not trained by rlep"),
    ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "mixture-of-experts models are not trained by rlep"),
    ({"model_type": "mamba2"}, "family 'mamba2' is not trained by rlep"),
    ({"quantization_config": {"quant_method": "fp8"}}, "is quantised (quantization_config in its config.json)"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantised"),
    ({"head_dim": 72}, "has attention heads of 72 values; vLLM on CPUs computes those of"),
    ({"max_position_embeddings": 8}, "need a context of"),
]


@pytest.mark.parametrize(("stated", "why"), REFUSED_SHAPES, ids=lambda one: str(one)[:40])
def test_plan_refuses_what_check_refuses_of_a_config_with_the_same_words(
    stated: dict[str, object], why: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    shutil.copytree(MODEL, tmp_path / "other")
    own = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(own | stated))
    named = [*overrides, f"model.path={tmp_path / 'other'}"]
    message = mistake(arguments("plan", config, named))
    assert why in message
    checked = CliRunner().invoke(app, arguments("check", config, named))
    assert message in checked.stdout
    (tmp_path / "other" / "config.json").write_text(json.dumps(own))
    shutil.copytree(MODEL, tmp_path / "teacher")
    (tmp_path / "teacher" / "config.json").write_text(json.dumps(own | stated))
    if "head_dim" not in stated:  # no engine serves a teacher
        taught = ["loss.kl_coef=1", f"loss.teacher={tmp_path / 'teacher'}"]
        assert why in mistake(arguments("plan", config, [*overrides, *taught]))


def test_plan_counts_adapters_apart_and_names_the_gpus_that_are_not_here(
    config: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    words = arguments("plan", config, [*overrides, "learner.lora_rank=8", "learner.gpus=1", "learner.dtype=bfloat16"])
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "2 bytes a frozen parameter, 12 an adapter's parameter" in " ".join(result.stdout.split())
    assert "does not fit this machine: GPUs: 0 here, the actors ask for 1; join a cluster with GPUs" in result.stdout


def test_plan_of_another_file_than_a_collection_is_refused(config: str, overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "collection.json").write_text("[]")
    message = mistake(arguments("plan", config, [*overrides, "replay.count=2"]))
    assert message.startswith(f"{tmp_path / 'run' / 'collection.json'} is not what a collection writes")


def test_evaluate_names_a_missing_model_and_writes_nothing(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "held.jsonl", ROWS)
    out = tmp_path / "out"
    message = mistake(["evaluate", str(tmp_path / "gone"), str(data), "--out", str(out)])
    assert message.startswith(f"{tmp_path / 'gone'}: no such model directory")
    assert not out.exists()


def test_config_show_prints_what_a_run_would_write_without_the_password_of_the_environment(
    config: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "RLEP_REDIS_PASSWORD", "hunter2")
    overrides = [*overrides, "pool.url=redis://rlep@host:6379/0"]
    result = CliRunner().invoke(app, ["config", *arguments("show", config, overrides)])
    assert json.loads(result.stdout)["rollout"]["prompts"] == 2
    assert "hunter2" not in result.output
