"""Commits in what a run records: a run is continued on them, and on no others."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from rlep.check.data_checks import check_stops
from rlep.check.inputs import Inputs, Subject
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.engines.tokenizer import load_tokenizer
from rlep.hub.repository import CONVERSION
from rlep.launch.command import resolve_names, run_of
from tests.fake_hub import Hub

QUICKSTART = Path(__file__).parents[3] / "rlep" / "quickstart" / "model"
TINY, DATA = "models/org/tiny", "datasets/org/data"
WEIGHTS = {"config.json": b"{}", "model.safetensors": b"w"}


class Notes:
    """Lines for the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, name: str, total: int, unit: str) -> AbstractContextManager[object]:
        return nullcontext(lambda by: None)


def settings(*overrides: str) -> Config:
    return load_config([], ["model.path=org/tiny", 'data.train="hf:org/data:train"', "run.directory=run", *overrides])


def resolved(*overrides: str) -> Config:
    return resolve_names(settings(*overrides), "train", Notes())  # type: ignore[arg-type]


def begun(hub: Hub) -> tuple[str, str]:
    """Push a model and a data set, and make a run of one step on them; returns their commits."""
    model = hub.push(TINY, WEIGHTS)
    data = hub.push(DATA, {"default/train/0000.parquet": b"1"}, branch=CONVERSION)
    store = RunDirectory(Path("run"), resolved(), Facts("train"))
    store.metrics.log(0, {})
    store.close()
    return model, data


def test_a_run_records_the_commits(hub: Hub) -> None:
    model, data = begun(hub)
    stored = json.loads(Path("run/config.json").read_text())
    assert (stored["model"]["path"], stored["model"]["revision"]) == ("org/tiny", model)
    assert stored["data"]["train"] == f"hf:org/data/default:train@{data}"


def test_the_same_names_continue_it_while_they_stand_for_the_same(hub: Hub) -> None:
    begun(hub)
    store = RunDirectory(Path("run"), resolved(), Facts("train"))
    store.close()
    assert store.resumed


def test_a_name_that_has_moved_is_refused_with_both_commits_before_anything_is_downloaded(hub: Hub) -> None:
    model, data = begun(hub)
    moved = hub.push(TINY, {**WEIGHTS, "config.json": b'{"new": 1}'})
    newer = hub.push(DATA, {"default/train/0000.parquet": b"2"}, branch=CONVERSION)
    hub.asked.clear()
    with pytest.raises(ConfigError) as caught:
        resolved()
    lines = str(caught.value).splitlines()
    assert f'  model.revision  in the directory: "{model}"  in this command: "{moved}"' in lines
    train = '  data.train      in the directory: "hf:org/data/default:train@{}"  in this command: "hf:org/data/default:train@{}"'
    assert train.format(data, newer) in lines
    assert not [line for line in hub.asked if "/resolve/" in line]
    back = next(line for line in lines if line.startswith("  to continue the run in run, add: "))
    assert f"""--set 'model.revision="{model}"'""" in back
    resolved(f"model.revision={model}", f'data.train="hf:org/data/default:train@{data}"')  # what the message says


def test_another_command_in_the_directory_is_still_told_so_first(hub: Hub) -> None:
    begun(hub)
    with pytest.raises(ConfigError, match="run belongs to `rlep train`, this command is `rlep collect`"):
        resolve_names(settings("rollout.fresh=4"), "collect", Notes())  # type: ignore[arg-type]


def test_a_pool_is_told_the_commit_of_the_model_that_wrote_a_response(hub: Hub) -> None:
    model, _ = begun(hub)
    inputs = Inputs(load_tokenizer(QUICKSTART), 42, "digest", None, None)
    given = None, None, Notes()
    assert run_of(resolved(), inputs, *given).policy_digest == f"rlep:org/tiny@{model}"  # type: ignore[arg-type]
    own = load_config([], [f'model.path="{QUICKSTART}"'])
    assert run_of(own, inputs, *given).policy_digest == "rlep:digest"  # type: ignore[arg-type]


def test_a_stop_token_that_a_model_of_the_hub_does_not_have_is_refused(hub: Hub) -> None:
    files = {file.name: file.read_bytes() for file in QUICKSTART.iterdir() if file.is_file()}
    hub.push(TINY, files)
    config = load_config([], ["model.path=org/tiny", "rollout.stop_tokens=[1, 42]"])
    with pytest.raises(ConfigError, match=r"^rollout\.stop_tokens: org/tiny has no token 42: its vocabulary has 42$"):
        check_stops(Subject(resolve_names(config, "evaluate", Notes())))  # type: ignore[arg-type]
