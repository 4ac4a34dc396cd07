"""One restart, two restarts."""

import pytest

from rlep.core.plural import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "restart", "0 restarts"),
        (1, "restart", "1 restart"),
        (2, "restart", "2 restarts"),
        (1, "query", "1 query"),
        (2, "replay", "2 replays"),
        (2000, "query", "2,000 queries"),
    ],
)
def test_a_count_has_the_number_of_its_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
