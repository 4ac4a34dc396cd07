"""Names of the hub on the command line: what a user sees, and how often the hub is asked."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlep.check.finding import Finding
from rlep.check.parts import trials
from rlep.cli import app
from rlep.config.schema import Config
from rlep.hub.repository import CONVERSION, Repository
from rlep.hub.resolve import download_model
from tests.fake_hub import Hub
from tests.services.hub.test_hub_data import shard

QUICKSTART = Path(__file__).parents[3] / "rlep" / "quickstart" / "model"
TINY = "models/org/tiny"
SHORT = ("data.max_prompt_tokens=64", "rollout.max_tokens=64", "reward.overlong_buffer=0")
"""Lengths that the tiny model has room for."""
FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"w" * 100_000}
DOWNLOAD = """
import sys
from rlep.cli.progress import TerminalProgress
from rlep.hub.resolve import download_model
with TerminalProgress(quiet=sys.argv[2] == "quiet") as progress:
    download_model("org/tiny", sys.argv[1], phase=progress.phase)
"""


def check(*words: str) -> str:
    return CliRunner().invoke(app, ["check", *(part for word in words for part in ("--set", word))]).stdout


def plan(*words: str) -> Result:
    Path("empty.toml").touch()
    return CliRunner().invoke(app, ["plan", "empty.toml", *(part for word in words for part in ("--set", word))])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.path=org/gone", "shows no model org/gone: check the name"),
        ("model.revision=v9", "the model org/tiny has no revision v9"),
        ("data.train=hf:org/gone:train", "shows no data set org/gone: check the name"),
        ("data.train=hf:org/sums:test", "hf:org/sums:test: no split test in default: there are train"),
        ("loss.teacher=org/gone", "shows no model org/gone: check the name"),
    ],
)
def test_a_plan_for_names_that_stand_for_nothing_ends_with_the_sentence_of_a_check(
    hub: Hub, word: str, sentence: str
) -> None:
    hub.push(TINY, {file.name: file.read_bytes() for file in QUICKSTART.iterdir() if file.is_file()})
    hub.push("datasets/org/sums", {"default/train/0000.parquet": shard(("2 + 2?", "4"))}, branch=CONVERSION)
    words = ["model.path=org/tiny", "data.train=hf:org/gone:train", "loss.kl_coef=0.1", *SHORT]
    words = [given for given in words if given.partition("=")[0] != word.partition("=")[0]] + [word]
    refused = plan(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert sentence in " ".join(check(*words).split())


def test_a_plan_without_network_says_what_it_could_not_ask_and_plans_the_rest(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    planned = plan("model.path=org/tiny", "data.train=hf:org/sums:train")
    assert planned.exit_code == 0, planned.output
    lines = [line for line in planned.stdout.splitlines() if line.startswith("missing:")]
    assert [("cannot be reached" in line, "planned without" in line) for line in lines[:2]] == [(True, True)] * 2
    assert "8 updates of 64 prompts" in planned.stdout


def test_a_wrong_variable_of_a_template_is_said_of_the_id_that_the_user_wrote(hub: Hub) -> None:
    hub.push(TINY, {file.name: file.read_bytes() for file in QUICKSTART.iterdir() if file.is_file()})
    Path("q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    words = ["model.path=org/tiny", "data.train=q.jsonl", "model.template={thinking = true}", *SHORT]
    refused = plan(*words)
    assert refused.exit_code == 2, refused.output
    assert "model.template.thinking: org/tiny: the chat template reads no variable of this name" in refused.stderr
    assert "model.template.thinking: org/tiny: the chat template" in " ".join(check(*words).split())


def seen(hub: Hub, home: Path, how: str, *, terminal: bool) -> str:
    """Download the model; returns what standard error was shown."""
    commit = hub.branches[TINY]["main"]
    known = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as shown:
        subprocess.run([sys.executable, "-c", DOWNLOAD, commit, how], env=known, stderr=theirs, check=True)
        os.write(theirs, b"\0")
        os.close(theirs)
        text = b""
        while not text.endswith(b"\0"):
            text += shown.read(65536)
    return text.decode()


def test_a_download_is_a_bar_of_the_command_s_own(hub: Hub, tmp_path: Path) -> None:
    hub.push(TINY, FILES | {"model.safetensors": bytes(7_200_000)})
    shown = seen(hub, tmp_path / "a", "loud", terminal=True)
    assert re.search(r"download .*0/7.* MB", shown)
    assert "Fetching" not in shown
    assert seen(hub, tmp_path / "b", "loud", terminal=False) == "\0"
    hub.broken.add("model.safetensors")  # of which there would be a warning
    assert seen(hub, tmp_path / "c", "quiet", terminal=True) == "\0"
    assert not hub.broken


def test_the_bar_counts_what_is_lacking(hub: Hub) -> None:
    bars: list[tuple[str, int, str, list[int]]] = []

    @contextmanager
    def phase(name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        bars.append((name, total, unit, []))
        yield bars[-1][3].append

    weights = {f"model-0000{part}-of-00002.safetensors": bytes(4_700_000 + part) for part in (1, 2)}
    commit = hub.push(TINY, FILES | weights)
    Repository("model", "org/tiny").snapshot(commit, ["config.json", "model-00001*"], phase=phase)
    download_model("org/tiny", commit, phase=phase)
    download_model("org/tiny", commit, phase=phase)
    assert [(name, total, unit, sum(moved)) for name, total, unit, moved in bars] == [
        ("download", 4, "MB", 4),
        ("download", 4, "MB", 4),
    ]


def test_a_name_that_stands_for_nothing_is_said_once(hub: Hub) -> None:
    hub.push("datasets/org/d", {"default/train/0.parquet": shard(("1?", "1"))}, branch=CONVERSION)
    lines = check("model.path=org/none", "data.train=hf:org/d:train").splitlines()
    wrong = [line for line in lines if line.startswith("wrong") and "org/none" in line]
    assert wrong == [
        f"wrong   model: the hub {hub.url} shows no model org/none: check the name; a private one needs an access token, in "
        "HF_TOKEN or by `hf auth login`"
    ]
    assert sum("org/none" in line for line in hub.asked) == 2  # for all names, and for the check that says so


def test_a_directory_whose_index_names_a_shard_that_is_not_there_is_refused_too(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(QUICKSTART, tmp_path / "model")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}')
    sentence = f"{index} names model-00002-of-00002.safetensors, which is not there: the model is not whole"
    short = ("data.max_prompt_tokens=8", "rollout.max_tokens=8", "reward.overlong_buffer=none", "data.train=none.jsonl")
    assert f"wrong   model: {sentence}" in check(f'model.path="{tmp_path / "model"}"', *short)
    assert hub.asked == []


def test_the_parts_are_tried_with_the_commit_that_was_checked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Config] = []

    def parts(config: Config, begun: object) -> Iterator[Finding]:
        tried.append(config)
        hub.push(TINY, FILES | {"config.json": b'{"new": 1}'})
        yield Finding("parts", "ok", "")

    monkeypatch.setattr(trials, "try_parts", parts)
    monkeypatch.setattr(sys.modules["rlep.cli.check"], "NEEDED", set())
    commit = hub.push(TINY, FILES)
    CliRunner().invoke(app, ["check", "--try", "--set", "model.path=org/tiny", "--set", "data.train=none.jsonl"])
    assert [config.model.revision for config in tried] == [commit]
    assert sum(line == "GET /api/models/org/tiny" for line in hub.asked) == 1
