"""``rlep status``, ``top``, ``timeline``, ``pool stats``, ``scale`` and ``drain`` on a run directory that somebody else prepared.

Whoever answers at a Ray address gets this user's token and runs code in the command: nothing connects before every check.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlep.actors.contact import Contact, check_private, read_contact, write_contact
from rlep.cli import app
from rlep.core.errors import ConfigError

COMMANDS = [
    *(["status"], ["top"], ["timeline"], ["pool", "stats", "--attach"]),
    *(["scale", "generators", "2", "--run"], ["drain", "generator-0", "--run"]),
]


@pytest.fixture(autouse=True)
def no_cluster_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def trap() -> Iterator[str]:
    """An address on loopback at which nobody may appear."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def real(tmp_path: Path, run: Path, trap: str) -> Contact:
    """A run's contact as ``rlep`` leaves it, with the private directory that confirms it."""
    home = tmp_path / f"rlep-ray-{os.getuid()}-{os.getpid()}-a1b2c3_d"
    home.mkdir(mode=0o700)
    (home / "token").touch(mode=0o600)
    (home / "token").write_text("secret")
    contact = Contact("run", trap, platform.node(), str(home / "token"))
    write_contact(home, contact)
    write_contact(run, contact)
    return contact


def refusal(command: list[str], run: Path, *options: str) -> str:
    result = CliRunner().invoke(app, [*command, str(run), *options])
    assert result.exit_code == 2, result.output
    assert "secret" not in result.output
    return result.stderr.removeprefix("error: ").rstrip()


def home_of(contact: Contact) -> Path:
    assert contact.token_file is not None
    return Path(contact.token_file).parent


def test_a_contact_that_rlep_wrote_passes(real: Contact, run: Path) -> None:
    assert read_contact(run) == real
    check_private(real, run)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_of_the_user_is_not_taken_for_a_token(command: list[str], run: Path, trap: str, tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    key.touch(mode=0o600)
    key.write_text("secret")
    write_contact(run, Contact("run", trap, platform.node(), str(key)))
    assert f"names the token file {key}, which is not in a directory that rlep makes" in refusal(command, run)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_address_that_the_user_has_not_named_is_not_asked(command: list[str], run: Path, trap: str) -> None:
    option = "cluster.address" if command[0] == "pool" else "--address"
    write_contact(run, Contact("run", trap, "anywhere", None))
    assert refusal(command, run) == (
        f"{run}/contact.json names the Ray cluster {trap}, which you have not: if it is the run's, repeat the command with that "
        f"{option}, or set RAY_ADDRESS"
    )


def test_the_address_that_the_user_names_is_asked_and_not_the_files(run: Path, trap: str) -> None:
    write_contact(run, Contact("run", trap, "anywhere", None))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        named = f"127.0.0.1:{closed.getsockname()[1]}"
    result = CliRunner().invoke(app, ["status", str(run), "--address", named])
    assert result.exit_code == 1
    assert f"no Ray cluster answers at '{named}'" in result.stderr


def test_a_private_cluster_is_on_loopback(real: Contact, run: Path) -> None:
    for address in ("10.0.0.1:6379", "127.0.0.1.example:6379", "ray://127.0.0.1:10001", "localhost:1", "auto"):
        write_contact(run, replace(real, address=address))
        assert refusal(["status"], run).startswith(
            f"{run}/contact.json names {address}: a private cluster is at 127.0.0.1"
        )


def test_the_token_of_a_real_run_is_not_sent_to_another_address(real: Contact, run: Path) -> None:
    host, port = real.address.split(":")
    write_contact(run, replace(real, address=f"{host}:{int(port) - 1}"))
    assert refusal(["status"], run) == (
        f"{run}/contact.json and {home_of(real)}/contact.json differ: it was changed since the run wrote it, and is not trusted"
    )


def test_a_private_directory_that_the_archive_brings_is_none(real: Contact, run: Path, tmp_path: Path) -> None:
    brought = run / home_of(real).name
    home_of(real).rename(brought)
    write_contact(run, replace(real, token_file=str(brought / "token")))
    assert "which is not in a directory that rlep makes" in refusal(["status"], run)
    for path in (f"{tmp_path}/run/../{brought.name}/token", f"{tmp_path}/rlep-ray-{os.getuid() + 1}-1-a/token"):
        write_contact(run, replace(real, token_file=path))
        assert "which is not in a directory that rlep makes" in refusal(["status"], run)
    link = tmp_path / brought.name
    link.symlink_to(brought)
    write_contact(run, replace(real, token_file=str(link / "token")))
    assert refusal(["status"], run) == f"{link} is a link, which is not followed"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777])
def test_a_private_directory_that_others_enter_is_refused(real: Contact, run: Path, mode: int) -> None:
    home_of(real).chmod(mode)
    assert f"{home_of(real)} has mode {mode:o}: others can" in refusal(["status"], run)


def test_a_token_that_others_can_read_or_that_is_a_link_is_refused(real: Contact, run: Path, tmp_path: Path) -> None:
    token = home_of(real) / "token"
    token.chmod(0o640)
    assert f"{token} has mode 640: others can read it" in refusal(["status"], run)
    token.rename(tmp_path / "elsewhere")
    token.symlink_to(tmp_path / "elsewhere")
    assert refusal(["status"], run) == f"{token} is a link, which is not followed"


@pytest.mark.parametrize("mode", [0o620, 0o606])
def test_a_contact_that_others_can_change_is_refused(real: Contact, run: Path, mode: int) -> None:
    (run / "contact.json").chmod(mode)
    assert refusal(["status"], run).startswith(f"{run}/contact.json has mode {mode:o}: others can change it")


def test_a_contact_that_is_a_link_or_a_pipe_is_refused(real: Contact, run: Path) -> None:
    path = run / "contact.json"
    path.unlink()
    path.symlink_to(home_of(real) / "contact.json")
    assert refusal(["status"], run) == f"{path} is a link, which is not followed"
    path.unlink()
    os.mkfifo(path, mode=0o600)
    assert refusal(["status"], run) == f"{path} is no regular file"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize("part", ["run", "file", "home", "token", "confirming"])
def test_what_belongs_to_another_user_is_refused(real: Contact, run: Path, part: str) -> None:
    home = home_of(real)
    places = {"run": run, "file": run / "contact.json", "home": home, "token": home / "token"}
    path = places.get(part, home / "contact.json")
    os.chown(path, 4711, -1)
    assert refusal(["status"], run).startswith(f"{path} belongs to user 4711, not to you: it is not trusted")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 60_000, "is not JSON"),
        ("{}", "is no contact of a run"),
        ('{"run": 1, "address": "a", "host": "b", "token_file": null}', "is no contact of a run"),
        ('{"run": "\\u001b[2J", "address": "a", "host": "b", "token_file": null}', "is no contact of a run"),
        ('{"run": "a", "address": "a", "host": null, "token_file": null}', "is no contact of a run"),
        (json.dumps(asdict(Contact("a" * 70_000, "b", "c", None))), "has more than 65536 bytes"),
        ("\udcff", "is not UTF-8"),
    ],
    ids=["deep", "empty", "number", "escape", "null", "long", "bytes"],
)
def test_a_damaged_contact_is_one_sentence(run: Path, text: str, said: str) -> None:
    (run / "contact.json").touch(mode=0o600)
    (run / "contact.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=said):
        read_contact(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_cluster_that_another_user_started_here_is_not_taken_for_this_users(tmp_path: Path) -> None:
    left = tmp_path / "ray" / "ray_current_cluster"
    left.parent.mkdir()
    left.write_text("127.0.0.1:1")
    os.chown(left, 4711, -1)
    assert refusal(["status"], Path("mine")).startswith("no Ray cluster to look for run mine on")
