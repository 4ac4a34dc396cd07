"""The contract's sizes, decided without a worker."""

from rlep.services.verifier.answers import depth_of, is_too_large
from rlep.services.verifier.verifier import Verifier


def test_answers_beyond_the_contracts_sizes_are_too_large() -> None:
    assert is_too_large("42", "x" * 4001)
    assert not is_too_large("42", "x" * 4000)
    assert is_too_large("x" * 4001, "42")
    assert is_too_large("42", "(" * 41 + "1" + ")" * 41)
    assert not is_too_large("42", "(" * 40 + "x" + ")" * 40)
    assert depth_of("((a)[b{c}])") == 3


def test_they_are_unparsable_by_the_gate() -> None:
    with Verifier() as verifier:
        (verdict,) = verifier.grade("42", ["\\boxed{" + "x" * 4001 + "}"], [False])
    assert (verdict.status, verdict.path) == ("unparsable", "gate")
