"""``rlep push`` of a run that somebody else made: only files of the run leave the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.engines.test_thinking_tokens import write
from tests.fake_hub import Hub
from tests.services.hub.test_hub_push import pushable, pushed, writer
from tests.unit.launch.test_evaluated_model import checkpoint, run_of

__all__ = ["writer"]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")  # as huggingface_hub gives httpx2 a large file
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n{{ messages }}\n"


def sent(hub: Hub) -> bytes:
    """All that the hub has been given."""
    return b"".join(
        [
            *hub.uploaded.values(),
            *(data for files in hub.commits.values() for commit in files.values() for data in commit.values()),
        ]
    )


@pytest.mark.parametrize("link", ["model/extra.json", "model/model.safetensors", "model", ""])
def test_nothing_behind_a_link_of_a_run_is_uploaded(writer: Hub, tmp_path: Path, link: str) -> None:
    secret = tmp_path / "home" / "model"
    secret.mkdir(parents=True)
    (secret / "extra.json").write_text(KEY)
    run = pushable(tmp_path / "run")
    step = run / "checkpoints" / "step-000020"
    place = step / link
    if place.is_dir():
        shutil.copytree(place, tmp_path / "home", dirs_exist_ok=True)
        shutil.rmtree(place)
        place.symlink_to(tmp_path / "home" / link)
    else:
        place.unlink(missing_ok=True)
        place.symlink_to(secret / "extra.json")
    refused = pushed(run)
    assert refused.exit_code == 2, refused.output
    assert f"{place} is a link, which is not followed" in refused.stderr.replace("\n", " ")
    assert KEY.encode() not in sent(writer)
    assert not writer.commits


def test_only_files_of_a_model_are_uploaded(writer: Hub, tmp_path: Path) -> None:
    run = pushable(tmp_path / "run")
    model = run / "checkpoints" / "step-000020" / "model"
    (model / "id_rsa").write_text(KEY)
    (model / ".env").write_text(KEY)
    done = pushed(run)
    assert done.exit_code == 0, done.output
    assert sorted(writer.head("models/org/mine")) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("manifest", "content", "said"),
    [
        ({}, KEY, "has no template_digest that tells the file"),
        ({"template_digest": "0" * 32}, KEY, "is not as it was when"),
        ({"template_digest": "0" * 32}, "-----BEGIN OPENSSH PRIVATE KEY-----", "is no chat template"),
        ({"template_digest": "0" * 32}, KEY * 2**15, "is no file of at most 1048576 bytes"),
    ],
)
def test_a_file_that_a_run_s_config_calls_its_template_stays_unless_the_run_knew_it(
    writer: Hub, tmp_path: Path, manifest: dict[str, str], content: str, said: str
) -> None:
    key, base = tmp_path / "id_rsa", write(tmp_path / "base")
    key.write_text(content)
    run = run_of(tmp_path / "run", f"model.path={base}", f"model.template_file={key}")
    shutil.copytree(base, checkpoint(run, 20, 0.5) / "model", dirs_exist_ok=True)
    (run / "manifest.json").write_text(json.dumps(manifest))
    refused = pushed(run)
    assert refused.exit_code in (1, 2)
    assert said in " ".join(refused.stderr.split())
    assert b"PRIVATE KEY" not in sent(writer)
