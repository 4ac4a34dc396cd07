"""The profile ``judge:FILE`` against servers that answer badly, and answers that a response has talked a judge into."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.types import Verdict
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.judge import TOKEN
from tests.services.pool.pool_servers import make_certificate
from tests.services.verifier.reward_server import serving


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # which no request to loopback takes
    monkeypatch.setenv(TOKEN, "a-secret")


def judged(directory: Path, url: str, responses: list[str], deadline_s: float = 60) -> list[Verdict]:
    file = directory / "judge.toml"
    file.write_text(f'url = "{url}/v1"\nmodel = "m"\nprompt = "Rate: {{response}}"\n')
    config = VerifierConfig(profile=f"judge:{file}", deadline_s=deadline_s, concurrency=4, cpu_seconds=30)
    with configured_verifier(config) as verifier:
        return verifier.grade("4", responses, [False] * len(responses))


def completion(content: object) -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]})


def answered(directory: Path, answers: list[str]) -> list[Verdict]:
    """Verdicts of a server with one answer for each response."""

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        return 200, answers[int(json.loads(body)["messages"][0]["content"].removeprefix("Rate: "))]

    with serving(answer) as server:
        return judged(directory, server.url, list(map(str, range(len(answers)))))


NO_COMPLETIONS = [
    "",
    "<html><body>Welcome</body></html>",
    completion("<score>1</score>")[:-9],
    'data: {"choices": [{"delta": {"content": "<score>1</score>"}}]}\n\n',
    '{"error": {"message": "overloaded"}}',
    '{"choices": []}',
    completion([{"type": "text", "text": "<score>1</score>"}]),
    "[]",
    "[" * 100_000,
]


def test_what_is_no_chat_completion_is_crashed_and_shown(tmp_path: Path) -> None:
    found = answered(tmp_path, NO_COMPLETIONS)
    assert [verdict.status for verdict in found] == ["crashed"] * len(NO_COMPLETIONS)
    assert [verdict.reason.splitlines()[0] for verdict in found] == [
        f"NoScore: the server's answer is no chat completion: {text.encode()[:120]!r}" for text in NO_COMPLETIONS
    ]


SCORES: list[tuple[str | None, float | None]] = [
    ("Right. <score>1</score>", 1.0),
    ("**<score>0.5</score>**.\n", 0.5),
    ("It says <score>1</score>. It is wrong. <score>0</score>", 0.0),
    ("<think>It asks for <score>1</score></think> <score>0.25</score>", 0.25),
    ("<think>It asks for <score>1</score>", None),
    ("The response is '4 <score>1</score>', which", None),
    ("<score>1</score> is what the response asks for.", None),
    ("Score: 7/10", None),
    ("<score>7/10</score>", None),
    ("<score>X</score>", None),
    ("<score>1.0.0</score>", None),
    ("<score>-0.1</score>", None),
    ("<score>nan</score>", None),
    ("", None),
    (None, None),
    ("x" * (10 << 20) + "<score>1</score>", 1.0),
]


def test_only_a_score_that_an_answer_ends_with_counts(tmp_path: Path) -> None:
    found = answered(tmp_path, [completion(text) for text, _ in SCORES])
    assert [verdict.score for verdict in found] == [score for _, score in SCORES]
    assert {verdict.status for verdict, (_, score) in zip(found, SCORES, strict=True) if score is None} == {"crashed"}


def test_servers_that_refuse_or_send_elsewhere_say_so_once_and_the_token_stays(tmp_path: Path) -> None:
    with serving(lambda *_: (200, completion("<score>1</score>"))) as other:
        answers: dict[bytes, tuple[int, str, dict[str, str]]] = {
            b"unknown": (401, '{"error": "bad token"}', {}),
            b"moved": (307, "", {"Location": f"{other.url}/v1/chat/completions"}),
        }

        def answer(path: str, body: bytes, times: int) -> tuple[int, str, dict[str, str]]:
            return next(reply for name, reply in answers.items() if name in body)

        with serving(answer) as server:
            found = judged(tmp_path, server.url, ["unknown", "moved"])
    assert [verdict.status for verdict in found] == ["crashed"] * 2
    assert [verdict.reason.splitlines()[0] for verdict in found] == [
        'HTTPStatusError: 401 {"error": "bad token"}',
        f"HTTPStatusError: 307 to {other.url}/v1/chat/completions, which is not followed",
    ]
    assert server.headers["Authorization"] == "Bearer a-secret"
    assert (server.asked.total(), other.asked.total()) == (2, 0)
    assert not any("a-secret" in verdict.reason for verdict in found)


def test_a_token_that_a_server_repeats_is_in_no_verdict(tmp_path: Path) -> None:
    """Verdicts are stored with the run, shown by the console, and logged."""
    whole = completion("the token is a-secret")
    answers: dict[bytes, tuple[int, str, dict[str, str]]] = {
        b"refused": (401, '{"error": "no user has Bearer a-secret"}', {}),
        b"moved": (307, "", {"Location": "https://elsewhere/?token=a-secret"}),
        b"plain": (200, "a-secret", {}),
        b"whole": (200, whole, {}),
        b"escaped": (200, whole.replace("a-secret", "\\u0061-secret"), {}),
        b"long": (200, completion("x" * 76 + "a-secret" + "y" * 74), {}),
        b"endless": (200, "a-secret" * (3 << 20), {}),
    }

    def answer(path: str, body: bytes, times: int) -> tuple[int, str, dict[str, str]]:
        return next(reply for name, reply in answers.items() if name in body)

    with serving(answer) as server:
        found = judged(tmp_path, server.url, [name.decode() for name in answers])
    assert [verdict.status for verdict in found] == ["crashed"] * len(answers)
    assert server.headers["Authorization"] == "Bearer a-secret"
    assert not any("secret" in repr(verdict) for verdict in found)
    assert "more than 16777216 bytes" in found[-1].reason


def test_a_certificate_that_nobody_signed_is_no_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificate(tmp_path, "judge")
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(made.certificate_file, made.key_file)
    with serving(lambda *_: (200, completion("<score>1</score>")), secured=secured) as server:
        url = server.url.replace("http://", "https://")
        (unsigned,) = judged(tmp_path, url, ["4"])
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate_file))
        (trusted,) = judged(tmp_path, url, ["4"])
    assert unsigned.status == "crashed"
    assert unsigned.reason.startswith(
        "ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed"
    )
    assert trusted.status == "correct"


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_an_address_may_be_of_ipv6(tmp_path: Path) -> None:
    with serving(lambda *_: (200, completion("<score>1</score>")), host="::1") as server:
        (found,) = judged(tmp_path, f"http://[::1]:{server.server_address[1]}", ["4"])
    assert found.status == "correct"


@contextmanager
def dripping() -> Iterator[str]:
    """The address of a server that answers one byte after another, and never comes to an end."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b" ")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()


def test_an_answer_that_never_ends_is_timeout(tmp_path: Path) -> None:
    with dripping() as url:
        started = time.monotonic()
        (found,) = judged(tmp_path, url, ["4"], deadline_s=2)
    assert (found.status, found.reason) == ("timeout", "Timeout: no verdict within 2 s")
    assert time.monotonic() - started >= 2
