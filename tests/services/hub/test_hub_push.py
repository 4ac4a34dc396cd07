"""``rlep push`` and ``rlep pool push | pull``: what arrives on the hub, with which card, and what comes back."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard, constants
from transformers import AutoTokenizer
from typer.testing import CliRunner, Result

from rlep.algorithms.evaluation import INTERVAL
from rlep.cli import app
from rlep.config.schema import ModelConfig
from rlep.core.files import write_json
from rlep.engines.tokenizer import load_tokenizer
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from tests.engines.test_thinking_tokens import write
from tests.fake_hub import Hub
from tests.services.pool.pool_commands import MODEL, ROWS, Commands
from tests.unit.launch.test_evaluated_model import checkpoint, run_of

SHARED = "datasets/org/shared"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")  # as huggingface_hub gives httpx2 a large file


@pytest.fixture
def writer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, for someone who may write."""
    hub.tokens.add("hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return hub


@pytest.fixture
def rlep(served_redis: EmbeddedRedis, tmp_path: Path, request: pytest.FixtureRequest) -> Commands:
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return Commands(served_redis, load_tokenizer(MODEL), data, f"push-{zlib.crc32(request.node.nodeid.encode()):x}")


def filled(rlep: Commands, *texts: str) -> str:
    """Add responses to question 1; returns the pool's digest."""
    with rlep.pool() as pool:
        pool.add([rlep.answer(1, text) for text in texts])
        return pool.digest()


def test_a_pool_comes_back_from_the_hub_as_it_was(writer: Hub, rlep: Commands) -> None:
    digest = filled(rlep, r"\boxed{2}", r"So \boxed{2}")
    pushed = rlep.run("push", "org/shared")
    assert pushed.exit_code == 0, pushed.output
    commit = writer.branches[SHARED]["main"]
    assert pushed.stdout == f"2 records of pool {rlep.name} in org/shared, commit {commit}\n"
    assert SHARED in writer.private
    assert sorted(writer.commits[SHARED][commit]) == ["README.md", "manifest.json", "part-00000.parquet"]
    pulled = rlep.run("pull", "org/shared", "--json", name=f"{rlep.name}-twin")
    told = json.loads(pulled.stdout)
    assert (told["inserted"], told["duplicates"], told["source"]) == (2, 0, f"org/shared@{commit}")
    with rlep.pool(f"{rlep.name}-twin") as twin:
        assert twin.digest() == digest
    again = json.loads(rlep.run("pull", "org/shared", "--json", name=f"{rlep.name}-twin").stdout)
    assert (again["inserted"], again["duplicates"]) == (0, 2)


def test_the_card_says_what_the_pool_holds_and_how_to_get_it(writer: Hub, rlep: Commands) -> None:
    digest = filled(rlep, r"\boxed{2}")
    rlep.run("push", "org/shared", "--public")
    assert SHARED not in writer.private
    card = writer.commits[SHARED][writer.branches[SHARED]["main"]]["README.md"].decode()
    assert card.startswith('---\ntags: ["rlep", "reinforcement-learning", "experience-replay", "rlep-pool"]\nconfigs: ')
    assert f"* 1 response to 1 question, digest `{digest}`\n" in card
    assert f"* tokenizer `{rlep.tokenizer.digest}`" in card
    assert "* written by `policy@1`: 1\n* graded by `math@0`: 1\n" in card
    assert f"rlep pool pull org/shared --embedded runs/shared --name {rlep.name}" in card


def test_the_card_counts_quarantined_responses_apart(writer: Hub, rlep: Commands) -> None:
    with rlep.pool() as pool:
        held, aside = rlep.answer(1, r"\boxed{2}"), rlep.answer(2, r"\boxed{3}")
        gone = rlep.answer(3, r"\boxed{4}")
        pool.add([held, aside, gone])
        pool.remove(aside.prompt_id, [aside.content_id], quarantine=True)
        pool.remove(gone.prompt_id, [gone.content_id])
        digest = pool.digest()
    rlep.run("push", "org/shared")
    card = writer.commits[SHARED][writer.branches[SHARED]["main"]]["README.md"].decode()
    assert f"* 1 response to 1 question, digest `{digest}`\n* 1 quarantined response beside them\n* tokenizer" in card


def test_a_later_push_replaces_the_shards_and_an_earlier_commit_stays(writer: Hub, rlep: Commands) -> None:
    writer.push(SHARED, {"part-00007.parquet": b"old", "notes.md": b"mine"})
    filled(rlep, r"\boxed{2}")
    assert rlep.run("push", "org/shared").exit_code == 0
    first = writer.branches[SHARED]["main"]
    assert sorted(writer.commits[SHARED][first]) == ["README.md", "manifest.json", "notes.md", "part-00000.parquet"]
    filled(rlep, r"So \boxed{2}")
    assert rlep.run("push", "org/shared").exit_code == 0
    pulled = rlep.run("pull", "org/shared", "--revision", first, "--json", name=f"{rlep.name}-first")
    assert json.loads(pulled.stdout)["inserted"] == 1


def test_what_is_no_pool_or_was_changed_on_the_hub_is_refused_and_nothing_is_stored(
    writer: Hub, rlep: Commands
) -> None:
    writer.push(SHARED, {"train.parquet": b"x"})
    message = rlep.run("pull", "org/shared").stderr
    assert "is no pool: it has no manifest.json; `rlep pool push` makes one" in message
    filled(rlep, r"\boxed{2}")
    rlep.run("push", "org/shared")
    files = dict(writer.commits[SHARED][writer.branches[SHARED]["main"]])
    shard = files["part-00000.parquet"]
    writer.push(SHARED, files | {"part-00000.parquet": shard[:-1] + bytes([shard[-1] ^ 1])})
    refused = rlep.run("pull", "org/shared", name=f"{rlep.name}-other")
    assert refused.exit_code == 2
    assert "the manifest says" in refused.stderr
    assert rlep.json("stats", name=f"{rlep.name}-other")["trajectories"] == 0


def test_without_a_token_that_may_write_a_push_is_one_sentence(
    hub: Hub, rlep: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    filled(rlep, r"\boxed{2}")
    refused = rlep.run("push", "org/shared")
    assert refused.exit_code == 2
    assert (
        "refuses this for org/shared (401): give an access token that may, in HF_TOKEN or by `hf auth login`"
        in " ".join(refused.stderr.split())
    )
    assert "hf_wrong" not in refused.output


def test_a_run_s_checkpoint_is_pushed_with_a_card_of_base_data_method_and_intervals(
    writer: Hub, tmp_path: Path
) -> None:
    run = run_of(
        tmp_path / "run",
        "model.path=org/tiny",
        f"model.revision={'c' * 40}",
        f'data.train="hf:org/gsm8k/main:train@{"d" * 40}"',
        "update.lr=1e-5",
        *("loss.kl_coef=0.5", "loss.teacher=org/big", f"loss.teacher_revision={'e' * 40}"),
        'pool.url="redis://10.0.0.1"',
    )
    model = checkpoint(run, 20, 0.5) / "model"
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"new")
    row = {"data_source": "aime", "questions": 30, "n": 4, "avg": 0.25, "ci": [0.2, 0.31], "interval": INTERVAL}
    lone = {"data_source": "lone", "questions": 1, "n": 4, "avg": 0.5, "ci": None, "interval": INTERVAL}
    rows = [{"step": step, **at} for step in (10, 20) for at in (row, lone)]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(at) + "\n" for at in rows))
    writer.push("models/org/mine", {"model-00001-of-00002.safetensors": b"old", "notes.md": b""})
    done = CliRunner().invoke(app, ["push", str(run), "org/mine"])
    assert done.exit_code == 0, done.output
    commit = writer.branches["models/org/mine"]["main"]
    files = writer.commits["models/org/mine"][commit]
    assert done.stdout == f"last checkpoint of {run}, step 20, in org/mine, commit {commit}\n"
    assert sorted(files) == ["README.md", "config.json", "model.safetensors", "notes.md"]
    card = files["README.md"].decode()
    assert 'base_model: "org/tiny"\ndatasets: ["org/gsm8k"]\n' in card
    assert f"* base model: org/tiny, commit `{'c' * 40}`\n" in card
    assert f", no replay, distilled from org/big, commit `{'e' * 40}`, 20 steps" in card
    assert "loss.kl_coef = 0.5\nrollout.max" in card  # not the teacher, which may be a path
    assert card.count(f"aime: avg@4 25.0 % (20.0 to 31.0: {INTERVAL}), 30 questions") == 1
    assert "lone: avg@4 50.0 %, 1 question" in card
    assert "update.lr = 1e-05" in card
    assert "10.0.0.1" not in card
    assert str(tmp_path) not in card


def pushable(directory: Path, *settings: str) -> Path:
    """Return a run on a model of the hub with a checkpoint of step 20."""
    run = run_of(directory, "model.path=org/tiny", f"model.revision={'c' * 40}", *settings)
    model = checkpoint(run, 20, 0.5) / "model"
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"new")
    return run


def pushed(run: Path) -> Result:
    return CliRunner().invoke(app, ["push", str(run), "org/mine"])


def test_a_second_push_of_the_same_changes_nothing(writer: Hub, rlep: Commands, tmp_path: Path) -> None:
    run = pushable(tmp_path / "run")
    assert pushed(run).stdout == pushed(run).stdout
    assert len(writer.commits["models/org/mine"]) == 2  # the empty repository's, and the push's
    filled(rlep, r"\boxed{2}")
    assert rlep.run("push", "org/shared").stdout == rlep.run("push", "org/shared").stdout


def test_the_hub_s_own_reader_reads_the_card(writer: Hub, tmp_path: Path) -> None:
    data = 'data.train=[{path="hf:org/gsm8k/main:train"}, {path="mine.jsonl", weight=2}, {path="hf:org/aime:train"}]'
    assert pushed(pushable(tmp_path / "run", data, "learner.lora_rank=8")).exit_code == 0
    card = ModelCard(writer.head("models/org/mine")["README.md"].decode())
    assert card.data.to_dict() == {
        "tags": ["rlep", "reinforcement-learning", "experience-replay"],
        "base_model": "org/tiny",
        "datasets": ["org/aime", "org/gsm8k"],
        "library_name": "transformers",
    }
    assert "LoRA of rank 8, merged" in card.text


def test_a_run_may_go_on_while_it_is_pushed(writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes the checkpoint that is being uploaded."""
    run = pushable(tmp_path / "run")
    commits = HfApi.create_commit

    def create_commit(*given: object, **options: object) -> object:
        shutil.rmtree(run / "checkpoints" / "step-000020")
        return commits(*given, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    assert pushed(run).exit_code == 0
    assert writer.head("models/org/mine")["model.safetensors"] == b"new"
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_large_files_go_into_a_storage_of_their_own(
    writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is hf_xet's own, in a directory; the hub's commit has a pointer."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    writer.storage = tmp_path / "storage"
    assert pushed(pushable(tmp_path / "run")).exit_code == 0
    digest = hashlib.sha256(b"new").hexdigest()
    assert f"oid sha256:{digest}\nsize 3\n" in writer.head("models/org/mine")["model.safetensors"].decode()
    assert not writer.uploaded
    assert list(writer.storage.rglob("*"))


@pytest.mark.parametrize(
    ("part", "status", "sentence"),
    [
        ("/signed/", 403, "refuses this for org/mine (403): give an access token that may"),
        ("/preupload/", 404, "answers 404 for org/mine; try again later"),
        ("/commit/", 409, "answers 409 for org/mine; try again later"),
    ],
)
def test_an_upload_that_fails_is_one_sentence(
    writer: Hub, tmp_path: Path, part: str, status: int, sentence: str
) -> None:
    writer.refusals.append((part, status, {}))
    refused = pushed(pushable(tmp_path / "run"))
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.stderr.split())
    assert "hf_secret" not in refused.output
    assert not writer.head("models/org/mine")


def test_large_files_are_sent_without_the_token(writer: Hub, tmp_path: Path) -> None:
    assert pushed(pushable(tmp_path / "run")).exit_code == 0
    assert {shown for host, shown in writer.shown if host == writer.files_url} == {None}
    assert list(writer.uploaded.values()) == [b"new"]


def test_a_run_by_a_template_of_its_own_is_pushed_with_it_unless_it_has_changed(writer: Hub, tmp_path: Path) -> None:
    own, base = tmp_path / "own.jinja", write(tmp_path / "base")
    own.write_text("Q: {{ messages[-1].content }} A:")
    run = run_of(tmp_path / "run", f"model.path={base}", f"model.template_file={own}")
    made = load_tokenizer(base, ModelConfig(template_file=own))
    (run / "manifest.json").write_text(json.dumps({"template_digest": made.template_digest}))
    shutil.copytree(base, checkpoint(run, 20, 0.5) / "model", dirs_exist_ok=True)
    done = CliRunner().invoke(app, ["push", str(run), "org/mine"])
    assert done.exit_code == 0, done.output
    files = writer.commits["models/org/mine"][writer.branches["models/org/mine"]["main"]]
    assert "own.jinja" not in files["README.md"].decode()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    asked = [{"role": "user", "content": "2 + 2?"}]
    assert AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(asked, tokenize=False) == "Q: 2 + 2? A:"
    own.write_text("Q: {{ messages[-1].content }}")
    refused = CliRunner().invoke(app, ["push", str(run), "org/mine"])
    assert refused.exit_code == 2
    assert f"own.jinja is not as it was when {run} was trained" in " ".join(refused.stderr.split())
    (run / "manifest.json").write_text('{"template_digest": "')
    damaged = CliRunner().invoke(app, ["push", str(run), "org/mine"])
    assert damaged.exit_code == 1
    assert damaged.stderr.startswith(f"error: {run / 'manifest.json'} is damaged: restore it")
    assert len(writer.commits["models/org/mine"]) == 2  # made empty, and the one above


def test_what_is_no_run_is_refused(writer: Hub, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    refused = CliRunner().invoke(app, ["push", str(tmp_path), "org/mine"])
    assert refused.exit_code == 2
    assert "is no directory of a training run: it has no checkpoints" in " ".join(refused.stderr.split())
    assert not writer.commits
