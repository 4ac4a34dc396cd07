"""``rlep config list`` and ``copy``, and ``rlep --version``: what a wheel gives to start from."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlep.cli import app
from rlep.config.settings import load_config
from rlep.config.shipped import HOME, README, shipped

ROOT = Path(__file__).parents[2]
RECIPES = [name for name, file in shipped().items() if file.name == README]


def said(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("name", [name for name in shipped() if name not in RECIPES])
def test_every_shipped_config_can_be_listed_copied_and_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in said("config", "list").stdout.splitlines() if line.startswith(f"{name} ")]
    assert len(line.split()) > 3  # what it is for
    assert said("config", "copy", name).stdout == f"configs/{name}.toml\n"
    copied = Path("configs", f"{name}.toml")
    assert copied.read_bytes() == shipped()[name].read_bytes()
    method = [shipped()["paper/rlep"]] if name.startswith(("machines/", "replay/")) else []
    machine = ["replay.count=0"] if name.startswith("machines/") else []
    load_config([*method, copied], machine)


def test_the_checkouts_configs_are_the_shipped_ones() -> None:
    assert (ROOT / "configs").resolve() == HOME
    assert {path.suffix for path in HOME.rglob("*") if path.is_file()} == {".toml", ".md"}
    names = [file.name for file in shipped().values() if file.name != README]
    assert len(names) == len(set(names))  # a missing file is known by its name alone


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_folder_that_says_what_to_expect_and_is_copied_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{name} " in said("config", "list").stdout
    table = [line.split(" | ")[0].strip("| ") for line in shipped()[name].read_text().splitlines() if " | " in line]
    assert {"For", "Machine", "Hours", "Curve"} <= {*table}
    copied = [Path(line) for line in said("config", "copy", name).stdout.splitlines()]
    assert {file.name: file.read_bytes() for file in copied} == {
        file.name: file.read_bytes() for file in (HOME / name).iterdir()
    }
    assert {file.parent for file in copied} == {Path("configs", name)}
    Path("configs", name, README).unlink()
    again = said("config", "copy", name)
    assert again.exit_code == 2
    assert again.stderr.endswith("is there already: name another folder\n")
    assert not Path("configs", name, README).exists()  # nothing is half copied


def test_a_name_without_its_folder_is_told_with_it() -> None:
    typed = said("config", "copy", "rlep")
    assert typed.stderr == "error: rlep has no config rlep; did you mean paper/rlep?\n"
    missing = said("check", "configs/rlep.toml")
    assert missing.stderr == (
        "error: config file configs/rlep.toml does not exist; `rlep config copy paper/rlep configs/rlep.toml` writes it\n"
    )


def test_a_copy_takes_no_files_place_and_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said("config", "copy", "configs/machines/1x80gb.toml", "mine.toml").stdout == "mine.toml\n"
    Path("mine.toml").write_text("changed")
    again = said("config", "copy", "machines/1x80gb", "mine.toml")
    assert (again.exit_code, again.stderr) == (2, "error: mine.toml is there already: name another file\n")
    assert Path("mine.toml").read_text() == "changed"
    typed = said("config", "copy", "machines/1x80bg")
    assert (typed.exit_code, typed.stderr) == (
        2,
        "error: rlep has no config machines/1x80bg; did you mean machines/1x80gb?\n",
    )


def test_a_shipped_file_that_is_not_here_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = said("check", "configs/machines/8x80gb.toml")
    assert missing.stderr == (
        "error: config file configs/machines/8x80gb.toml does not exist; "
        "`rlep config copy machines/8x80gb configs/machines/8x80gb.toml` writes it\n"
    )
    assert said("check", "other.toml").stderr == "error: config file other.toml does not exist\n"


def test_the_version_is_the_installed_one() -> None:
    assert said("--version").stdout == f"rlep {version('rlep')}\n"
