"""Reward functions that use the network: how many ask at once, and what becomes of servers that fail, are slow or are away."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.errors import JudgeAway
from rlep.core.types import Verdict
from rlep.services.verifier.at_once import MOST_THREADS, trouble_of
from rlep.services.verifier.grader import configured_verifier
from tests.services.verifier.reward_server import serving

pytestmark = pytest.mark.usefixtures("functions_on_path")
SYNC, ASYNC = "python:verifier_functions:by_server", "python:verifier_functions:by_async_server"


def config_of(profile: str, concurrency: int = 4, deadline_s: float = 60) -> VerifierConfig:
    return VerifierConfig(profile=profile, network=True, concurrency=concurrency, deadline_s=deadline_s, cpu_seconds=30)


def graded(config: VerifierConfig, url: str, responses: Sequence[str], *, workers: int = 1) -> list[Verdict]:
    with configured_verifier(config, workers=workers) as verifier:
        return verifier.grade(url, responses, [False] * len(responses))


@pytest.mark.parametrize(("profile", "workers"), [(SYNC, 1), (ASYNC, 1), (ASYNC, 2)])
def test_so_many_responses_are_graded_at_once_and_no_more(profile: str, workers: int) -> None:
    together = threading.Barrier(4 * workers)

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        together.wait(60)  # with fewer at once nobody would ever be answered
        return 200, "yes" if int(path) % 2 else "no"

    with serving(answer) as server:
        found = graded(config_of(profile), server.url, list(map(str, range(16))), workers=workers)
    assert [verdict.status for verdict in found] == ["wrong", "correct"] * 8
    assert (server.most_at_once, server.asked.total()) == (4 * workers, 16)


@pytest.mark.parametrize("profile", [SYNC, ASYNC])
def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not(profile: str) -> None:
    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        return {"busy": (503, ""), "many": (429, ""), "bad": (400, "")}.get(path if times < 3 else "", (200, "yes"))

    with serving(answer) as server:
        found = graded(config_of(profile), server.url, ["busy", "many", "bad", "fine"])
    assert [verdict.status for verdict in found] == ["correct", "correct", "crashed", "correct"]
    assert server.asked == {"busy": 3, "many": 3, "bad": 1, "fine": 1}
    assert "400" in found[2].reason.splitlines()[0]


@pytest.mark.parametrize("profile", [SYNC, ASYNC])
def test_a_response_that_is_not_answered_in_time_is_timeout_and_not_wrong(profile: str) -> None:
    over = threading.Event()

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        if path == "never":
            over.wait(120)
        return 200, "yes"

    with serving(answer) as server:
        config = config_of(profile, deadline_s=10)
        with configured_verifier(config) as verifier:
            found = verifier.grade(server.url, ["a", "never", "b"], [False] * 3)
            after = verifier.grade(server.url, ["c"], [False])
        over.set()
    assert [verdict.status for verdict in (*found, *after)] == ["correct", "timeout", "correct", "correct"]
    assert found[1].reason == "Timeout: no verdict within 10 s"


@pytest.mark.parametrize("profile", [SYNC, ASYNC])
def test_a_server_that_is_away_is_an_error_and_no_verdict(profile: str) -> None:
    with socket.socket() as bound:  # nobody listens there, and nobody else will
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            JudgeAway,
            match=rf"the server behind {profile[7:]} could not be reached for 10 s \(verifier.deadline_s\): (URL|Connect)Error",
        ):
            graded(config_of(profile, deadline_s=10), url, ["a", "b"])


def test_a_function_that_ends_its_process_costs_no_other_response_its_verdict() -> None:
    with serving(lambda *_: (200, "yes")) as server:
        found = graded(config_of(ASYNC, concurrency=8), server.url, ["a", "b", "die", "c", "d"])
    assert [verdict.status for verdict in found] == ["correct", "correct", "crashed", "correct", "correct"]
    assert found[2].reason == "Ended: its process, with exit code 3"


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no system call filter for this machine")
def test_the_network_allows_sockets_and_threads_and_neither_programs_nor_signals_nor_files(tmp_path: Path) -> None:
    attempts = ["network", "thread", "process", "fork", "signal", "signal through a descriptor"]
    found = graded(config_of("python:verifier_functions:escape"), "x", attempts)
    refused = {name: verdict.status == "correct" for name, verdict in zip(attempts, found, strict=True)}
    assert refused == {
        "network": False,
        "thread": False,
        "process": True,
        "fork": True,
        "signal": True,
        "signal through a descriptor": True,
    }


class Overloaded(Exception):
    status = 529


def test_errors_say_whether_the_server_or_the_function_failed() -> None:
    wrapped = RuntimeError("the client's own")
    wrapped.__cause__ = ConnectionRefusedError()
    untrusted = URLError(ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))
    troubles = [
        ConnectionResetError(),
        wrapped,
        Overloaded(),
        TimeoutError(),
        ValueError(),
        FileNotFoundError(),
        untrusted,
    ]
    assert [trouble_of(error) for error in troubles] == ["away", "away", "away", "slow", "", "", ""]


def test_a_server_that_fails_at_one_response_is_not_away_and_one_that_fails_at_all_is() -> None:
    with serving(lambda path, *_: (500, "no") if path == "bad" else (200, "yes")) as server:
        found = graded(config_of(ASYNC, deadline_s=10), server.url, ["bad", "a", "b"])
        with pytest.raises(
            JudgeAway, match=r"could not be reached for 1 s \(verifier.deadline_s\): HTTPStatusError: .*500 "
        ):
            graded(config_of(ASYNC, deadline_s=1), server.url, ["bad"])
    assert [verdict.status for verdict in found] == ["timeout", "correct", "correct"]
    assert "Timeout: no verdict within 10 s, the last time HTTP" in found[0].reason


@pytest.mark.parametrize("profile", [SYNC, ASYNC])
def test_a_server_that_says_when_to_come_back_is_asked_no_earlier(profile: str) -> None:
    asked: list[float] = []

    def answer(path: str, body: bytes, times: int) -> tuple[int, str, dict[str, str]]:
        asked.append(time.monotonic())
        return (429, "", {"Retry-After": "2"}) if times == 1 else (200, "yes", {})

    with serving(answer) as server:
        (found,) = graded(config_of(profile), server.url, ["a"])
    assert (found.status, len(asked)) == ("correct", 2)
    assert asked[1] - asked[0] >= 2


def test_as_many_functions_that_are_not_async_wait_at_once_as_there_may_be_threads() -> None:
    together = threading.Barrier(MOST_THREADS)

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        together.wait(120)
        return 200, "yes"

    with serving(answer) as server:
        config = config_of(SYNC, concurrency=MOST_THREADS, deadline_s=300)
        found = graded(config, server.url, list(map(str, range(MOST_THREADS))))
    assert [verdict.status for verdict in found] == ["correct"] * MOST_THREADS
