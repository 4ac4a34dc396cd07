"""Files that appear whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlep.core.files import replace_with, sha256_of, write_whole


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with replace_with(path) as part:
        part.write_text("ne")
        assert path.read_text() == "old"
        part.write_text("new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    (tmp_path / ".state.json.part").write_text("of a writer that was killed")

    def fail() -> None:
        with replace_with(path) as part:
            part.write_text("ne")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_private_file_is_nobody_elses_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o644)
    with replace_with(path, private=True) as part:
        assert part.stat().st_mode & 0o777 == 0o600
        part.write_text("secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_many_writers_of_a_shared_file_leave_one_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "shared"

    def write(number: int) -> None:
        with replace_with(path, shared=True) as part:
            part.write_text(str(number) * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(9)))
    assert path.read_text() in {str(number) * 10_000 for number in range(9)}
    assert [file.name for file in tmp_path.iterdir()] == ["shared"]


def test_content_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    known = tmp_path / "wandb.id"
    with monkeypatch.context() as process:
        process.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_whole(known, "a1b2")
    assert not known.exists()
    write_whole(known, "a1b2")
    assert [path.name for path in tmp_path.iterdir()] == ["wandb.id"]
    assert known.read_text() == "a1b2"


def test_text_is_utf_8_bytes_are_as_they_are_and_a_private_file_is_its_owners(tmp_path: Path) -> None:
    text, raw = tmp_path / "text", tmp_path / "raw"
    write_whole(text, "π\n")
    write_whole(raw, b"abc", private=True, shared=True)
    assert text.read_bytes() == b"\xcf\x80\n"
    assert raw.stat().st_mode & 0o777 == 0o600
    assert sha256_of(raw) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
