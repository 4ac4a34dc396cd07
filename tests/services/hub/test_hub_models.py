"""``model.path`` as an id of the hub: resolved once, downloaded whole, refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlep.actors.node_model import model_on_node
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError, DeadlineExceeded, ModelError
from rlep.hub.resolve import model_directory, resolve
from tests.fake_hub import Hub

TINY = "models/org/tiny"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"w" * 100_000,
}
OTHERS = {
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"raise SystemExit",
    "onnx/model.safetensors": b"other",
    "consolidated.safetensors": b"again",
}


def config_of(*overrides: str) -> Config:
    return load_config([], ["model.path=org/tiny", *overrides])


def resolved(*overrides: str) -> Config:
    return resolve(config_of(*overrides), lambda _: None)


def test_an_id_becomes_its_newest_commit_and_a_directory_with_the_files_that_are_read(hub: Hub) -> None:
    commit = hub.push(TINY, FILES | OTHERS)
    notes: list[str] = []
    config = resolve(config_of(), notes.append)
    assert (config.model.path, config.model.revision) == (Path("org/tiny"), commit)
    assert notes == [f"model: org/tiny of the hub, commit {commit}"]
    directory = model_directory(config.model)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == FILES


def test_a_branch_is_resolved_and_a_commit_stays(hub: Hub) -> None:
    first = hub.push(TINY, FILES)
    old = hub.push(TINY, FILES | {"config.json": b'{"old": 1}'}, branch="v1")
    assert resolved("model.revision=v1").model.revision == old
    assert resolved(f"model.revision={old}").model.revision == old
    assert resolved("model.revision=none").model.revision == first


def test_what_is_here_is_not_asked_for_again_and_serves_without_a_network(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.push(TINY, FILES)
    directory = model_directory(resolved().model)
    hub.asked.clear()
    assert model_directory(resolved(f"model.revision={commit}").model) == directory
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolved().model.revision == commit


def test_a_directory_wins_and_has_no_revision(hub: Hub, tmp_path: Path) -> None:
    hub.push(TINY, FILES)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    assert resolved().model.revision is None
    assert model_directory(resolved().model) == Path("org/tiny")
    with pytest.raises(ConfigError, match=r"model.revision = main: org/tiny is a directory"):
        resolved("model.revision=main")
    assert hub.asked == []


@pytest.mark.parametrize("path", ["tiny", "org/tiny/x", "/org/tiny", "./tiny", "org/missing"])
def test_no_id_is_guessed(hub: Hub, tmp_path: Path, path: str) -> None:
    """Of a slip below a directory that is here nobody is asked either."""
    (tmp_path / "org").mkdir()
    assert model_directory(resolved(f'model.path="{path}"').model) == Path(path)
    assert hub.asked == []


def test_half_a_download_is_never_taken_for_the_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.push(TINY, FILES)
    texts = model_directory(config_of().model, weights=False)
    assert not (texts / "model.safetensors").exists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot be reached, and this machine has no whole copy of org/tiny"):
        resolved(f"model.revision={commit}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert (model_directory(resolved().model) / "model.safetensors").stat().st_size == 100_000


def test_a_cache_that_cannot_tell_if_it_is_whole_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs put single files there."""
    directory = model_directory(resolved_of(hub).model)
    for listing in (directory.parents[1] / "trees").iterdir():
        listing.unlink()
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="no whole copy of org/tiny"):
        resolved()


def resolved_of(hub: Hub) -> Config:
    hub.push(TINY, FILES)
    return resolved()


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub) -> None:
    hub.push(TINY, FILES)
    hub.broken.add("model.safetensors")
    assert (model_directory(resolved().model) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert sum(line.startswith("GET") and "model.safetensors" in line for line in hub.asked) == 2
    assert not hub.broken


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.path=org/none"], "shows no model org/none: check the name; a private one needs an access token"),
        (["model.revision=v9"], "the model org/tiny has no revision v9 on the hub http://127.0.0.1:"),
        ([f"model.revision={'a' * 40}"], f"the model org/tiny has no revision {'a' * 40} on the hub"),
        (["model.path=org/gated"], "org/gated is gated: accept its conditions at http://127.0.0.1:"),
        (["model.path=org/pickled"], "has no *.safetensors weights; other formats are not read"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_in_a_sentence(
    hub: Hub, overrides: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.push(TINY, FILES)
    hub.push("models/org/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.push("models/org/gated", FILES)
    hub.gated.add("models/org/gated")
    with pytest.raises(ModelError) as caught:
        resolved(*overrides)
    assert sentence in str(caught.value)
    assert "hf_secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_nobody_answers_for_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelError, match=r"the hub http://127.0.0.1:1 cannot be reached, .* \(ConnectError\)"):
        resolved()


def test_a_node_downloads_its_own_copy_of_the_recorded_commit(hub: Hub, tmp_path: Path) -> None:
    """The address comes from ``HF_ENDPOINT``, as everywhere else; the engine's own process asks nobody."""
    config = resolved_of(hub)
    node = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "node"), "HF_HUB_OFFLINE": "0"}
    directory = model_on_node(Path("/driver"), config.model, 60.0, node)
    assert directory.is_relative_to(tmp_path / "node")
    assert directory.name == config.model.revision
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert model_on_node(directory, load_config([], ["model.path=d"]).model, 60.0, {}) == directory
    with pytest.raises(
        ModelError, match=f"no copy of org/tiny of the hub, commit {config.model.revision}: the hub http"
    ):
        model_on_node(
            directory, config.model, 60.0, node | {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path / "b")}
        )
    with pytest.raises(DeadlineExceeded, match="raise start_deadline_s of generator and learner"):
        model_on_node(directory, config.model, 0.01, node)


def test_help_and_configs_load_no_hub_client() -> None:
    program = "import sys, rlep.hub.resolve, rlep.data.prompts\nprint('huggingface_hub' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
