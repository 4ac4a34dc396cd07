"""Environment variables within a block and after it."""

import os

import pytest

from rlep.core.variables import variables


@pytest.mark.parametrize(("replace", "within"), [(True, "ours"), (False, "theirs")])
def test_variables_are_as_before_after_the_block(monkeypatch: pytest.MonkeyPatch, replace: bool, within: str) -> None:
    monkeypatch.setenv("RLEP_HELD", "theirs")
    monkeypatch.delenv("RLEP_NEW", raising=False)
    with variables({"RLEP_HELD": "ours", "RLEP_NEW": "ours"}, replace=replace):
        assert (os.environ["RLEP_HELD"], os.environ["RLEP_NEW"]) == (within, "ours")
    assert os.environ["RLEP_HELD"] == "theirs"
    assert "RLEP_NEW" not in os.environ
