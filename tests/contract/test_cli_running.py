"""``rlep status``, ``top``, ``scale`` and ``drain`` where there is no run to speak to: the reason, before Ray is started."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import tempfile
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from rlep.actors.contact import Contact, read_contact, remove_contact, write_contact
from rlep.actors.control import Command, Look, RunClient, RunStatus, Scale
from rlep.actors.jobs import submit_job
from rlep.actors.replicas import ActorStatus, RoleStatus
from rlep.cli import app, live
from rlep.core.errors import ActorLost, ConfigError

COMMANDS = [["status"], ["top"], ["scale", "generators", "2", "--run"], ["drain", "generator-0", "--run"]]


def refusal(command: list[str], run: Path) -> str:
    """The one line that a command ends with, as a mistake of the user."""
    result = CliRunner().invoke(app, [*command, str(run)])
    assert result.exit_code == 2, result.output
    assert not ray.is_initialized()
    return result.stderr.removeprefix("error: ").rstrip()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_run_that_has_ended_is_said(command: list[str], tmp_path: Path) -> None:
    assert refusal(command, tmp_path) == (
        f"no run is in progress in {tmp_path}: contact.json is not there (it has ended, or its actors are still starting)"
    )


def test_a_path_that_is_no_run_is_not_looked_for_on_a_cluster(tmp_path: Path) -> None:
    assert refusal(["status"], tmp_path / "typo") == f"{tmp_path / 'typo'}: no such run directory"


def test_a_private_run_is_found_by_directory_and_not_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # no cluster was started here
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert refusal(["status"], Path("mine")) == (
        "no Ray cluster to look for run mine on: a private run is found by its directory (e.g. runs/mine); "
        "for a run on a cluster give --address, or set RAY_ADDRESS"
    )


def test_a_job_needs_a_working_directory_and_the_address_of_a_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # submitting sets it
    with pytest.raises(ConfigError, match=r"--working-dir .*/typo: no such directory"):
        submit_job(["train"], address="http://127.0.0.1:1", working_dir=tmp_path / "typo")
    with pytest.raises(ConfigError, match="garbage is not the address of a dashboard"):
        submit_job(["train"], address="garbage", working_dir=tmp_path)


def test_a_private_cluster_of_another_machine_is_named(tmp_path: Path) -> None:
    write_contact(tmp_path, Contact("run", "10.0.0.1:6379", "elsewhere", "/tmp/token"))
    assert refusal(["status"], tmp_path) == f"{tmp_path} runs on a private cluster of elsewhere: ask on that machine"


def test_a_run_that_was_killed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = tmp_path / f"rlep-ray-{os.getuid()}-1-gone" / "token"
    write_contact(tmp_path, Contact("run", "127.0.0.1:1", platform.node(), str(gone)))
    assert refusal(["status"], tmp_path) == (
        f"{tmp_path} was killed: its token {gone} cannot be read (No such file or directory)"
    )


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_role_needs_at_least_one_actor(count: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["scale", "--run", str(tmp_path), "--", "generators", count])
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


def test_only_generators_and_verifiers_are_scaled(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["scale", "learners", "2", "--run", str(tmp_path)])
    assert result.exit_code == 2
    assert "'learners'" in result.stderr


def test_a_contact_is_read_back_by_its_owner_alone_until_it_is_removed(tmp_path: Path) -> None:
    contact = Contact("run", "127.0.0.1:6379", "here", None)
    write_contact(tmp_path / "run", contact)
    assert read_contact(tmp_path / "run") == contact
    assert [(path.name, path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()] == [
        ("contact.json", 0o600)
    ]
    remove_contact(tmp_path / "run")
    remove_contact(tmp_path / "run")
    assert read_contact(tmp_path / "run") is None


async def test_a_run_that_ends_under_a_command_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unheard: list[dict[str, object]] = []

    class Ending(RunClient):
        def __init__(self) -> None:
            pass

        async def ask(self, command: Command, *, deadline_s: float) -> RunStatus:
            if isinstance(command, Look):
                raise ConfigError("no run is going on")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # its answer has come already
                raise ActorLost("the run ended meanwhile") from None
            raise AssertionError

    monkeypatch.setattr(live, "NEWS_S", 0.0)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    try:
        await live._answer(Ending(), Scale("generators", 3, 60.0))
    except ConfigError as error:  # pytest.raises would hold the task, whose end is looked at
        said = str(error)
    for _ in range(3):  # rounds of the loop in which a command that was left alone ends
        await asyncio.sleep(0)
    gc.collect()
    assert said == "no run is going on"
    assert not unheard


def test_a_status_has_a_line_for_each_error_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "needs 1 CPU, " * 40 + "no more"
    roles = (RoleStatus("verifier", (ActorStatus("verifier-0", "placing", error=error),)),)

    async def asked(*_: object) -> RunStatus:
        return RunStatus("mine", roles)

    monkeypatch.setattr(live, "run_cluster", lambda *_: None)
    monkeypatch.setattr(live, "_asked", asked)
    for command in (["status", "mine"], ["scale", "verifiers", "2", "--run", "mine"]):
        lines = CliRunner().invoke(app, command).stdout.splitlines()
        assert lines[0] == "mine: policy version none yet"
        assert lines[-1] == f"verifier-0: {error}"
