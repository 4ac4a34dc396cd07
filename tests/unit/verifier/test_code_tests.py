"""References of the profile ``code``: what they may compute in the grading process."""

import json

import pytest

from rlep.core.errors import DataError
from rlep.services.verifier.code_tests import read_tests


@pytest.mark.parametrize("expected", ["[0]*100000*3000", "'ab'*100000*6", "[0]*100000*10 + [0]", "((1,)*1000*1000)*2"])
def test_a_value_of_more_than_a_million_items_is_refused_before_it_is_computed(expected: str) -> None:
    with pytest.raises(DataError, match=r"is no literal|more than 1,000,000 items"):
        read_tests(json.dumps({"tests": [f"assert f(1) == {expected}"]}))


def test_a_value_of_a_million_items_is_compared() -> None:
    (call,) = read_tests(json.dumps({"tests": ["assert f(1) == [0]*100000*10"]})).calls
    assert call.check is not None
    assert call.check([0] * 10**6)
    assert not call.check([0] * (10**6 - 1))
