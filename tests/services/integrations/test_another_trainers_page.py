"""The lines of docs/how-to/replay-in-another-trainer.md: with the trainers that PyPI has, and all of them as Python."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_command_blocks import files
from tests.contract.test_documents import ROOT
from tests.contract.test_installed_wheel import look_for_registry, uv
from tests.services.integrations.pool_process import pool_process
from tests.services.integrations.trl_scene import MODEL

PAGE = ROOT / "docs" / "how-to" / "replay-in-another-trainer.md"
HERE = Path(__file__).parent
SKYRL = ["skyrl-gym==0.4.0", "omegaconf", "hydra-core", "antlr4-python3-runtime", "loguru", "torchdata", "jaxtyping"]
SKYRL += ["wadler-lindig", "tensordict", "func-timeout", "cloudpathlib", "polars", "orjson", "pybase64"]
NEEDED = {
    "skyrl 0.3.0": ["skyrl==0.3.0", *SKYRL],
    "skyrl 0.4.0": ["skyrl==0.4.0", *SKYRL],
    "openrlhf": ["openrlhf==0.11.2", "pylatexenc", "torchdata", "deepspeed==0.19.6", "hjson", "py-cpuinfo"],
}
"""What the page's lines import of a trainer, without the packages that a checkout of rlep has."""


def told_by(needed: str, folder: Path) -> Any:
    """What a trainer's script prints, run with the page's files, the trainer from a package index, and a pool server."""
    packages = folder / "packages"
    look_for_registry()
    trainer, *others = NEEDED[needed]
    uv("pip", "install", "--no-deps", "--target", packages, "--python", sys.executable, *others)
    # SkyRL 0.4 asks for Python 3.12; what the page imports of it runs with ours.
    uv("pip", "install", "--no-deps", "--target", packages, "--python-version", "3.12", trainer)
    for name, text in files(PAGE).items():
        (folder / name).write_text(text)
    with pool_process(folder / "data") as address:
        done = subprocess.run(
            [sys.executable, HERE / f"{needed.partition(' ')[0]}_page.py", MODEL, folder],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{folder}:{packages}:{ROOT}", "RLEP_POOL": address, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["skyrl 0.3.0", "skyrl 0.4.0"])
def test_skyrl_generates_what_the_pool_lacks(tmp_path: Path, version: str) -> None:
    told = told_by(version, tmp_path)
    first, second, third = told["steps"]
    assert [step["asked"] for step in told["steps"]] == [8, 4, 4]
    assert first["answers"] == [7, 8, 1, 7] * 2
    for step, fresh in ((second, [1, 2]), (third, [3, 7])):
        for group in (step["answers"][:4], step["answers"][4:]):
            assert group[:2] == fresh
            assert sorted(group[2:]) == [7, 8]
        assert step["prompts"] == [30] * 8
        assert step["repetitions"] == [0, 1, 2, 3] * 2
    assert second["logprobs"] == [-0.5, -0.5, 0.0, 0.0] * 2
    assert second["advantages"] == [-0.5, -0.5, 0.5, 0.5] * 2
    assert third["advantages"] == [-0.75, 0.25, 0.25, 0.25] * 2  # of rewards by token
    assert told["evaluated"] == [9] * 8
    assert told["refused"] == "replay needs policy_loss_type=regular, and no off_policy_correction"
    assert told["unfit"] == "replays have no routed experts and no sample support: leave their replay out"
    if version == "skyrl 0.4.0":
        assert (told["together"], told["times"]) == (16, [0.25] * 16)


@pytest.mark.slow
def test_openrlhf_trains_a_replay_in_the_last_place(tmp_path: Path) -> None:
    told = told_by("openrlhf", tmp_path)
    first, second = told["steps"]
    assert first["answers"] == [7, 7, 8, 6, 7, 1, 2, 3]
    assert second["answers"] == [1, 2, 3, 7, 1, 2, 3, 7]
    assert second["lengths"] == second["totals"] == [10] * 4 + [3] * 4
    assert second["logged"] == [0, 0, 0, 1] * 2
    assert [step["exhausted"] for step in told["steps"]] == [False, True]
    assert first["advantages"] == [[value] * 2 for value in (0.5, 0.5, -0.5, -0.5, 0.75, -0.25, -0.25, -0.25)]
    assert second["advantages"] == [[value] * 2 for value in [-0.25, -0.25, -0.25, 0.75] * 2]
    assert told["refused"] == "replay needs algo.advantage.is_correction_level off"


@pytest.mark.parametrize("name", sorted(files(PAGE)))
def test_the_lines_name_what_is_there(name: str) -> None:
    """Each file is Python, and what it takes from rlep or from the page's own file is there."""
    shared = {alias.name for node in imports(files(PAGE)["pool.py"]) for alias in node.names} | {
        "replayer",
        "reward_of",
    }
    taken = [(node.module, alias.name) for node in imports(files(PAGE)[name]) for alias in node.names]
    for module, wanted in taken:
        if module is not None and module.split(".")[0] == "rlep":
            assert hasattr(import_module(module), wanted), (module, wanted)
        if module == "pool":
            assert wanted in shared
    assert any(module is not None and module.split(".")[0] in {"rlep", "pool"} for module, _ in taken)


def imports(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
