"""``rlep config list`` and ``copy``, and ``rlep --version``: what a wheel gives to start from."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlep.cli import app
from rlep.config.settings import load_config
from rlep.config.shipped import HOME, shipped

ROOT = Path(__file__).parents[2]


def said(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("name", shipped())
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
    assert {path.suffix for path in HOME.rglob("*") if path.is_file()} == {".toml"}


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
