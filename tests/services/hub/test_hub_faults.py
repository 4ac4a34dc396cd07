"""A hub as it is on a bad day, and a machine: one sentence each, nothing half taken for whole, no secret shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlep.config.settings import load_config
from rlep.core.errors import DataError, ModelError
from rlep.hub import client
from rlep.hub.repository import CONVERSION, Repository
from rlep.hub.resolve import model_directory, resolve
from tests.fake_hub import Hub
from tests.services.hub.test_hub_data import shard
from tests.waiting import DEADLINE_S

TINY = "models/org/tiny"
FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"w" * 100_000}
INDEX = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
TOKEN = "hf_verySecret"


def downloaded(*overrides: str) -> dict[str, bytes]:
    config = resolve(load_config([], ["model.path=org/tiny", *overrides]), lambda _: None)
    return {path.name: path.read_bytes() for path in model_directory(config.model).iterdir()}


def refused(*overrides: str) -> str:
    with pytest.raises(ModelError) as caught:
        downloaded(*overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def in_process(hub: Hub, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Download the model as a node of a cluster does, in a process of its own."""
    known = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    known |= {"HF_HUB_DISABLE_XET": "1"} | environment
    command = [sys.executable, "-m", "rlep.hub", "org/tiny", hub.branches[TINY]["main"]]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_large_files_come_from_another_host_that_is_shown_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.push(TINY, FILES)
    assert downloaded() == FILES
    assert {shown for host, shown in hub.shown if host == hub.files_url} == {None}
    assert f"Bearer {TOKEN}" in {shown for host, shown in hub.shown if host == hub.url}


def test_large_files_come_out_of_a_storage_of_its_own(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is hf_xet's own, in a directory."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.storage = tmp_path / "storage"
    hub.push(TINY, FILES)
    assert downloaded() == FILES
    assert not [line for line in hub.asked if "/signed/" in line]
    hub.push("models/org/lost", {"config.json": b"{}", "model.safetensors": b"lost"})
    hub.stored(b"lost")
    shutil.rmtree(hub.storage)
    assert f"org/lost cannot be had from the hub {hub.url}: RuntimeError: " in refused("model.path=org/lost")


def test_a_model_that_was_renamed_is_had_by_its_former_name(hub: Hub) -> None:
    hub.push(TINY, FILES)
    hub.renamed["models/org/former"] = TINY
    assert downloaded("model.path=org/former") == FILES


def test_a_hub_that_asks_for_patience_is_asked_again(hub: Hub) -> None:
    hub.push(TINY, FILES)
    hub.refusals += [("/tree/", 429, {"Retry-After": "0"}), ("/tree/", 429, {"Retry-After": "86400"})]
    assert downloaded() == FILES
    assert not hub.refusals


@pytest.mark.parametrize(("part", "status"), [("/api/models", 503), ("/signed/", 503), ("/signed/", 404)])
def test_a_hub_that_fails_is_named_with_its_answer(hub: Hub, part: str, status: int) -> None:
    hub.push(TINY, FILES)
    hub.refusals += [(part, status, {})] * 2
    assert refused() == f"the hub {hub.url} answers {status} for org/tiny; try again later"


def test_a_branch_stands_for_what_it_stood_for_where_the_hub_fails(hub: Hub) -> None:
    hub.push(TINY, FILES)
    downloaded()
    hub.push(TINY, FILES | {"config.json": b'{"new": 1}'})
    hub.refusals.append(("/api/models", 503, {}))
    assert downloaded() == FILES


def test_a_hub_that_says_nothing_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    hub.push(TINY, FILES)
    hub.stalled.add("/api/models")
    assert "cannot be reached, and this machine has no whole copy of org/tiny" in refused()
    hub.ended.set()


def test_an_answer_that_is_no_hub_s_is_one_sentence(hub: Hub) -> None:
    """Such as the page of a network that wants a login first."""
    hub.push(TINY, FILES)
    hub.refusals.append(("/api/models", 200, {}))
    assert f"org/tiny cannot be had from the hub {hub.url}: JSONDecodeError: " in refused()
    hub.refusals += [("/resolve/", 200, {})] * 3
    assert "is missing the 'X-Repo-Commit' header" in refused()


def test_a_file_of_another_size_is_downloaded_again(hub: Hub) -> None:
    """It is what a crash of the machine leaves of a file that had been whole."""
    hub.push(TINY, FILES)
    downloaded()
    (blob,) = [path for path in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if path.stat().st_size == 100_000]
    blob.write_bytes(b"w" * 10)
    assert downloaded() == FILES


def test_a_download_that_is_killed_is_begun_again(hub: Hub, tmp_path: Path) -> None:
    hub.push(TINY, FILES)
    hub.stalled.add("/signed/")
    known = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "rlep.hub", "org/tiny", hub.branches[TINY]["main"]]
    with subprocess.Popen(command, env=known | {"HF_HUB_DISABLE_XET": "1"}, stderr=subprocess.DEVNULL) as process:
        while not list(tmp_path.rglob("*.incomplete")) and process.poll() is None:
            hub.ended.wait(0.05)
        process.kill()
    hub.stalled.clear()
    assert list(tmp_path.rglob("*.incomplete"))
    done = in_process(hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_disk_without_room_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.push(TINY, FILES | {"model.safetensors": b"w" * 3_000_000})
    command = f'ulimit -f 1000; exec "{sys.executable}" -m rlep.hub org/tiny {hub.branches[TINY]["main"]}'
    known = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    known |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(["sh", "-c", command], env=known, capture_output=True, text=True, check=False)
    cache = tmp_path / "home" / "hub"
    assert done.stderr == f"org/tiny cannot be kept in {cache}: File too large: make room there, or set HF_HOME\n"
    assert not list(tmp_path.rglob("*.incomplete"))
    (tmp_path / "file").touch()
    last = in_process(hub, tmp_path / "file").stderr.splitlines()[-1]
    assert last == f"org/tiny cannot be kept in {tmp_path}/file/hub: Not a directory: make room there, or set HF_HOME"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"model-00001-of-00002.safetensors": b"w", "model.safetensors.index.json": INDEX}, "the model is not whole"),
        ({"model.safetensors": b"w", "model.safetensors.index.json": b"[]"}, "cannot be read: TypeError"),
        ({"onnx/model.safetensors": b"w"}, "has no *.safetensors weights"),
        ({"consolidated.safetensors": b"w"}, "has no *.safetensors weights"),
    ],
)
def test_weights_that_are_not_all_there_are_refused_before_they_are_downloaded(
    hub: Hub, files: dict[str, bytes], sentence: str
) -> None:
    hub.push(TINY, {"config.json": b"{}", **files})
    assert sentence in refused()
    assert not [line for line in hub.asked if "/signed/" in line]


def test_no_file_is_written_outside_the_cache(hub: Hub, tmp_path: Path) -> None:
    hub.push(TINY, FILES | {"../../x.json": b"evil", "..\\x.json": b"evil"})
    assert downloaded() == FILES
    hub.push("datasets/org/d", {f"default/train/{name}.parquet": b"" for name in ("0", "../../../../x")}, CONVERSION)
    with pytest.raises(DataError, match=r"org/d cannot be had from the hub .* Invalid filename"):
        resolve(load_config([], ["model.path=m", "data.train=hf:org/d:train"]), lambda _: None)
    assert not list(tmp_path.rglob("x.*"))


@pytest.mark.parametrize(
    "name", ["org/na--me", "org/name.git", "org/na..me", "org/name.", "org/" + "n" * 93, "org/\u00fc"]
)
def test_a_name_that_no_hub_has_is_none(hub: Hub, name: str) -> None:
    config = load_config([], [f'model.path="{name}"'])
    assert resolve(config, lambda _: None).model.revision is None
    with pytest.raises(ModelError, match="is no name of the hub: the form is ORG/NAME"):
        Repository("model", name)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("files", "sentence"),
    [({}, "has no Parquet copy of org/d"), ({".gitattributes": b""}, "the hub's Parquet copy of it is empty")],
)
def test_a_data_set_without_a_conversion_says_what_to_do(hub: Hub, files: dict[str, bytes], sentence: str) -> None:
    hub.push("datasets/org/d", {"train.csv": b"a"})
    if files:
        hub.push("datasets/org/d", files, branch=CONVERSION)
    with pytest.raises(DataError, match="ownload the data set, and name its files") as caught:
        resolve(load_config([], ["model.path=m", "data.train=hf:org/d:train"]), lambda _: None)
    assert sentence in str(caught.value)


def test_a_configuration_s_name_is_no_pattern(hub: Hub) -> None:
    files = {"a[b]*/train/0.parquet": shard(("1?", "1")), "ab/train/0.parquet": shard(("2?", "2"))}
    hub.push("datasets/org/d", files, branch=CONVERSION)
    resolve(load_config([], ["model.path=m", 'data.train="hf:org/d/a[b]*:train"']), lambda _: None)
    assert [line for line in hub.asked if line.startswith("GET /signed/")] == [
        f"GET /signed/datasets/org/d/{hub.branches['datasets/org/d'][CONVERSION]}/a%5Bb%5D%2A/train/0.parquet?Signature=secret"
    ]


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, "/model.safetensors peer closed connection"),
        ({"HF_TOKEN": f"{TOKEN}\u00e9"}, "UnicodeEncodeError"),
        ({"HF_ENDPOINT": f"http://user:{TOKEN}@127.0.0.1:1"}, "the hub http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_nothing_secret_is_shown(hub: Hub, tmp_path: Path, environment: dict[str, str], shown: str) -> None:
    hub.push(TINY, FILES)
    hub.broken.add("model.safetensors")
    done = in_process(hub, tmp_path / "home", **environment)
    assert shown in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "Signature" not in done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://user:pass@mirror/org/x?a=b&Signature=c: timed out", "at http://mirror/org/x timed out"),
        ("Illegal header value b'Bearer hf_abc_1'", "Illegal header value b'Bearer '"),
        ("no hf_ABC here", "no  here"),
    ],
)
def test_credentials_signatures_and_tokens_are_taken_out_of_a_text(text: str, shown: str) -> None:
    assert client.discreet(text) == shown
