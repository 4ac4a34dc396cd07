"""How findings are printed."""

import json

import pytest

from rlep.check.finding import Finding
from rlep.cli.check import show_findings

FOUND = [
    Finding("one", "ok", "7 nats"),
    Finding("two", "skipped", "there is one GPU"),
    Finding("three", "wrong", "a part is broken", "do this", "a message"),
]


def test_messages_of_a_failure_stand_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_findings(FOUND) == 1
    shown = capsys.readouterr()
    assert shown.err == "a message\n"
    assert shown.out == (
        "ok      one: 7 nats\nskipped two: there is one GPU\nwrong   three: a part is broken\n        → do this\n"
    )


def test_a_script_reads_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_findings(FOUND[:2], as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["findings"][1] == {
        "what": "two", "level": "skipped", "detail": "there is one GPU", "remedy": "", "messages": "",
    }  # fmt: skip
