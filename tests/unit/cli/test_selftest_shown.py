"""How the outcomes of the self-test are printed."""

import pytest

from rlep.check.parts.outcome import Outcome
from rlep.cli.selftest import show


def test_messages_of_a_failure_stand_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Outcome("one", "ok", "7 nats"), Outcome("two", "failed", "a part is broken", "do this", "a message")]
    assert show(found, as_json=False) == 1
    shown = capsys.readouterr()
    assert shown.err == "a message\n"
    assert shown.out == "ok      one: 7 nats\nfailed  two: a part is broken\n        → do this\n"
