"""Who may change a run from the console, what is started then, and what is not."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlep.console.actions import MOST_OUTPUT, Actions
from rlep.console.app import Console
from rlep.console.run_files import RunPlace
from tests.unit.console.actions_scene import stub_actions, write_working
from tests.unit.console.console_scene import READER, TOKEN, client_of
from tests.unit.console.page_checks import page
from tests.waiting import wait_until

ADDRESS = "/runs/runs~a/actors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_working(tmp_path / "runs" / "a")


@pytest.fixture
def actions(tmp_path: Path) -> Actions:
    return stub_actions(tmp_path)


@pytest.fixture
def client(run: Path, actions: Actions) -> Iterator[TestClient]:
    with client_of(run.parent, actions=actions) as made:  # one event loop for all requests
        yield made


def csrf_of(client: TestClient) -> str:
    found = re.search('name="csrf" value="([^"]+)"', page(client, ADDRESS))
    assert found
    return found[1]


def sent(client: TestClient, what: str, headers: Mapping[str, str] | None = None, **form: str) -> tuple[int, str]:
    answer = client.post(f"{ADDRESS}/{what}", data={"csrf": csrf_of(client)} | form, headers=headers)
    return answer.status_code, answer.text


def test_the_commands_are_started_and_their_output_is_text(client: TestClient, run: Path, tmp_path: Path) -> None:
    assert sent(client, "scale", role="verifiers", count=" 02 ")[0] == 303
    wait_until(lambda: ": done</p>" in page(client, ADDRESS), "the command's end")
    assert (tmp_path / "asked").read_text().split("\n") == ["scale", "verifiers", "2", "--run", str(run)]
    text = page(client, ADDRESS)
    assert f"rlep scale verifiers 2 --run {run}" in text
    assert len(re.search("<pre[^>]*>(.*?)</pre>", text, re.S)[1]) <= MOST_OUTPUT  # type: ignore[index]
    assert f"asked for scale verifiers 2 --run {run}" in text
    assert "<script>window" not in text
    (tmp_path / "refuse").touch()
    assert sent(client, "drain", actor="generator-1")[0] == 303
    wait_until(lambda: "failed with exit status 1" in page(client, ADDRESS), "the command's end")
    assert (tmp_path / "asked").read_text().split("\n") == ["drain", "generator-1", "--run", str(run)]
    assert page(client, ADDRESS).index("rlep drain") < page(client, ADDRESS).index("rlep scale")


def test_without_the_sessions_secret_nothing_is_started(client: TestClient, run: Path, tmp_path: Path) -> None:
    other = client_of(run.parent, actions=Actions())
    good = {"role": "verifiers", "count": "2"}
    for form in (good, good | {"csrf": ""}, good | {"csrf": "guessed"}, good | {"csrf": csrf_of(other)}):
        assert client.post(f"{ADDRESS}/scale", data=form).status_code == 403
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9"):
        assert sent(client, "scale", {"origin": origin}, **good)[0] == 403
    assert sent(client, "scale", {"host": "evil.example"}, **good)[0] == 400
    for site in ("cross-site", "same-site", "none"):
        assert sent(client, "scale", {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}, **good)[0] == 403
    assert sent(client, "scale", role="verifiers", count="2" * 5000)[0] == 413
    stranger = client_of(run.parent, actions=Actions(), logged_in=False)
    form = good | {"csrf": csrf_of(client)}
    assert stranger.post(f"{ADDRESS}/scale", data=form).status_code == 403
    assert stranger.post(f"{ADDRESS}/scale", data=form, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 403
    assert client.get(f"{ADDRESS}/scale").status_code == 405
    assert client.post("/", data=form).status_code == client.post("/api/runs", data=form).status_code == 405
    assert not (tmp_path / "asked").exists()


def test_a_token_that_reads_may_not(run: Path, actions: Actions, tmp_path: Path) -> None:
    reader = client_of(run.parent, token=READER, actions=actions)
    text = page(reader, ADDRESS)
    assert "This token may only read." in text
    assert "<form" not in text
    answer = reader.post(f"{ADDRESS}/scale", data={"role": "verifiers", "count": "2", "csrf": ""})
    assert (answer.status_code, answer.text) == (403, "this token may only read")
    assert not (tmp_path / "asked").exists()


def test_a_console_that_reads_has_no_such_route(run: Path) -> None:
    client = client_of(run.parent)
    assert not [route for route in Console([]).routes() if "POST" in (route.methods or ())]
    assert len([route for route in Console([], (), Actions()).routes() if "POST" in (route.methods or ())]) == 2
    for what in ("scale", "drain"):
        assert client.get(f"{ADDRESS}/{what}").status_code == 404
        assert client.post(f"{ADDRESS}/{what}").status_code == 405
    assert "Change" not in page(client, ADDRESS)


@pytest.mark.parametrize("count", ["", "0", "-1", "1.5", "x", "١", "99999", "1e3", "9" * 4000, "2; true", "--help"])
def test_a_bad_number_is_one_sentence(client: TestClient, tmp_path: Path, count: str) -> None:
    code, text = sent(client, "scale", role="generators", count=count)
    assert code == 400
    assert "<p>The number is a whole number from 1 to 9999.</p>" in text
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    "actor", ["", "learner-0", "generator-", "--run", "generator-1 x", "generator-1\n", "verifier-٣"]
)
def test_a_bad_name_is_one_sentence(client: TestClient, tmp_path: Path, actor: str) -> None:
    code, text = sent(client, "drain", actor=actor)
    assert code == 400
    assert "<p>An actor is named as on the page, e.g. generator-1.</p>" in text
    assert "<p>The role is generators or verifiers.</p>" in sent(client, "scale", role="learners", count="1")[1]
    assert not (tmp_path / "asked").exists()


def test_one_command_of_a_run_at_a_time(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    assert sent(client, "scale", role="verifiers", count="2")[0] == 303
    assert ": at work</p>" in page(client, ADDRESS)
    assert "Another command on this run has not ended yet." in sent(client, "scale", role="verifiers", count="3")[1]
    (tmp_path / "wait").unlink()
    wait_until(lambda: ": done</p>" in page(client, ADDRESS), "the command's end")
    assert sent(client, "scale", role="verifiers", count="3")[0] == 303
    wait_until(lambda: page(client, ADDRESS).count(": done</p>") == 2, "the command's end")


def test_a_command_that_does_not_end_is_stopped(run: Path, actions: Actions, tmp_path: Path) -> None:
    actions.deadline_s = 0.5
    (tmp_path / "wait").touch()
    with client_of(run.parent, actions=actions) as client:
        assert sent(client, "scale", role="verifiers", count="2")[0] == 303
        wait_until(lambda: ": stopped after 0.5 s</p>" in page(client, ADDRESS), "the command's end")
    with client_of(run.parent, actions=Actions((str(tmp_path / "nothing"),))) as client:
        assert sent(client, "scale", role="verifiers", count="2")[0] == 303
        wait_until(lambda: ": did not start: " in page(client, ADDRESS), "the command's end")


def test_a_command_ends_with_the_console_and_leaves_nothing_open(run: Path, actions: Actions, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with client_of(run.parent, actions=actions) as client:
        assert sent(client, "scale", role="verifiers", count="2")[0] == 303
        wait_until((tmp_path / "asked").exists, "the command's start")
    gc.collect()  # an unclosed pipe is a ResourceWarning, which fails this test
    (change,) = actions.offer(RunPlace("runs~a", run), None).changes
    assert change.ended == "stopped with the console"


def test_a_run_that_ended_or_is_somebody_elses_takes_no_commands(client: TestClient, run: Path, tmp_path: Path) -> None:
    csrf = csrf_of(client)
    contact = run / "contact.json"

    def refused(reason: str) -> None:
        text = page(client, ADDRESS)
        assert reason in text
        assert "<form" not in text
        answer = client.post(f"{ADDRESS}/scale", data={"csrf": csrf, "role": "verifiers", "count": "2"})
        assert answer.status_code == 400
        assert reason in answer.text

    contact.chmod(0o666)
    refused("contact.json of this run is not a file that only you can change.")
    contact.unlink()
    refused("The run takes no commands now: its actors are starting, or it has ended.")
    (tmp_path / "contact.json").write_text("{}")
    contact.symlink_to(tmp_path / "contact.json")
    refused("contact.json of this run is not a file that only you can change.")
    missing = client.post("/runs/nothing/actors/scale", data={"csrf": csrf, "role": "verifiers", "count": "2"})
    assert missing.status_code == 404
    assert not (tmp_path / "asked").exists()
