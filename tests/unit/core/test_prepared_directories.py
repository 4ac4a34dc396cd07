"""What rlep writes into a directory that another user of the machine may have prepared, or may read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlep.actors.cluster import Cluster
from rlep.config.roles import ClusterConfig
from rlep.config.schema import Config
from rlep.core.errors import ConfigError
from rlep.core.files import write_whole
from rlep.core.jsonl import JsonLines
from rlep.core.paths import own_directory, save_logs
from rlep.driver.run_directory import Facts, RunDirectory


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


@pytest.fixture
def ray(tmp_path: Path) -> Path:
    """Ray's logs, opened to everybody as Ray does; nobody comes as far as that."""
    logs = tmp_path / "session_2026" / "logs"
    (logs / "old").mkdir(parents=True)
    (logs / "raylet.out").write_text("raylet")
    (logs / "old" / "gcs.out").write_text("gcs")
    (logs / "secret").symlink_to("/etc/hostname")
    for path in (logs, logs / "old", logs / "raylet.out", logs / "old" / "gcs.out"):
        path.chmod(0o777)
    return logs


def closed(tmp_path: Path) -> list[tuple[str, str]]:
    """Close a cluster whose run has failed, as its command does; returns what it reports."""
    said: list[tuple[str, str]] = []
    cluster = Cluster(ClusterConfig(), "run", lambda event, _, error: said.append((event, error)))
    cluster.home = tmp_path / "home"
    (cluster.home / "r").mkdir(parents=True)
    (tmp_path / "session_2026").rename(cluster.home / "r" / "session_2026")
    cluster.close(tmp_path / "logs")
    return said


def test_kept_logs_are_their_owner_s_alone_whatever_modes_ray_gave_them(tmp_path: Path, ray: Path) -> None:
    assert closed(tmp_path) == []
    kept = {
        path.relative_to(tmp_path).as_posix(): mode(path)
        for path in [tmp_path / "logs", *(tmp_path / "logs").rglob("*")]
    }
    assert kept == {"logs": 0o700, "logs/old": 0o700, "logs/raylet.out": 0o600, "logs/old/gcs.out": 0o600}
    assert (tmp_path / "logs" / "raylet.out").read_text() == "raylet"


def test_the_logs_of_the_next_failure_go_through_no_link_of_another_user(tmp_path: Path, ray: Path) -> None:
    """The directory is one of before, which everybody could write to."""
    profile, elsewhere = tmp_path / "profile", tmp_path / "elsewhere"
    profile.write_text("mine")
    elsewhere.mkdir()
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "raylet.out").symlink_to(profile)
    (logs / "old").symlink_to(elsewhere)
    logs.chmod(0o777)
    [(event, error)] = closed(tmp_path)
    assert (event, "old is a link" in error) == ("logs_lost", True)
    assert profile.read_text() == "mine"
    assert [*elsewhere.iterdir()] == []
    assert ((logs / "raylet.out").read_text(), mode(logs)) == ("raylet", 0o700)


def test_logs_behind_a_link_and_in_another_user_s_directory_are_not_written(tmp_path: Path, ray: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a link"):
        save_logs(ray, tmp_path / "logs")
    if os.geteuid() == 0:
        os.chown(tmp_path / "victim", 12345, -1)
        with pytest.raises(ConfigError, match="belongs to user 12345"):
            own_directory(tmp_path / "victim")
    assert [*(tmp_path / "victim").iterdir()] == []


def append_log(run: Path) -> None:
    with_run = RunDirectory(run, Config(), Facts("train"))
    try:
        with_run.keep_log("verifier.err", "crashed")
    finally:
        with_run.close()


def append_line(run: Path) -> None:
    JsonLines(run / "metrics.jsonl").close()


@pytest.mark.parametrize(("write", "name"), [(append_log, "logs/verifier.err"), (append_line, "metrics.jsonl")])
def test_nothing_is_appended_behind_a_link(tmp_path: Path, write: Callable[[Path], None], name: str) -> None:
    profile, link = tmp_path / "profile", tmp_path / "run" / name
    profile.write_text("mine")
    link.parent.mkdir(parents=True)
    link.symlink_to(profile)
    with pytest.raises(ConfigError, match="is a link, which is not followed"):
        write(tmp_path / "run")
    assert profile.read_text() == "mine"


def test_a_link_that_waits_where_a_file_is_begun_is_not_followed(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("mine")
    (tmp_path / ".config.json.part").symlink_to(profile)
    write_whole(tmp_path / "config.json", "{}")
    assert (profile.read_text(), (tmp_path / "config.json").read_text()) == ("mine", "{}")
