"""The rules by which an engine's weights are compared with the published ones, on sums that can be added by hand."""

from __future__ import annotations

import pytest

from rlep.core.errors import ModelError, WeightSyncError
from rlep.engines.weights.held_weights import HeldWeight, Worker, check_held, parts_of
from rlep.engines.weights.weight_update import MODULUS

SIZES = {"norm": 4, "q": 8, "k": 4, "v": 4, "embed": 6, "up": 8, "packed": 9}
SUMS = {"norm": 5, "q": MODULUS - 1, "k": 20, "v": 300, "embed": 7, "up": 60, "packed": 1}


def worker(norm: int, qkv: int, embed: int, up: int) -> dict[str, HeldWeight]:
    """Half of q beside all of k and v; of the embedding four rows, some of them padding."""
    return {
        "norm": HeldWeight({"norm": 1}, 4, norm),
        "qkv": HeldWeight({"q": 1, "k": 2, "v": 2}, 12, qkv),
        "embed": HeldWeight({"embed": 1}, 4, embed),
        "up": HeldWeight({"gate": 1, "up": 1}, 4, up),
        "packed": HeldWeight({"packed": 1}, 0, None),
    }


def workers(**second: int) -> list[Worker]:
    """Two that hold what was published: q = 400 + 639 beyond the modulus, k and v twice."""
    return [worker(norm=5, qkv=400, embed=7, up=50), worker(**{"norm": 5, "qkv": 239, "embed": 0, "up": 10} | second)]


def check(held: list[Worker]) -> None:
    check_held(held, {"up": {"up": 1}} | parts_of({n: w for n, w in held[0].items() if n != "up"}, SIZES), SIZES, SUMS)


def test_shards_add_up_copies_count_and_whole_weights_are_equal() -> None:
    check(workers())  # 400 + 239 = -1 + 2 * (20 + 300), 7 + 0 = 7, 50 + 10 = 60


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"qkv": 240}, "qkv"),
        ({"qkv": 239 + MODULUS // 2}, "qkv"),
        ({"norm": 0}, "norm"),  # 5 + 0 would add up to what was published
        ({"embed": 1}, "embed"),  # padding that is not zero
        ({"up": 11, "norm": 6}, "norm, up"),
    ],
)
def test_what_does_not_add_up_is_named(second: dict[str, int], named: str) -> None:
    count = named.count(",") + 1
    with pytest.raises(
        WeightSyncError, match=rf"^{count} of the engine's 5 weights are not what was published: {named}$"
    ):
        check(workers(**second))


def test_weights_that_come_or_go_after_the_start_are_named() -> None:
    both = workers()
    with pytest.raises(WeightSyncError, match=r"not those that it started with: head$"):
        check_held([both[0], {**both[1], "head": both[1]["norm"]}], parts_of(both[0], {*SIZES, "gate"}), SIZES, SUMS)


def test_a_family_may_publish_what_the_engine_calls_fused() -> None:
    held = worker(5, 400, 7, 50)
    explained = parts_of(held, {**SIZES, "gate": 8})
    assert explained["up"] == {"gate": 1, "up": 1}
    assert parts_of(held, SIZES)["up"] == {"up": 1}  # there is no gate beside it


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("experts", HeldWeight({"w1": 1, "w3": 1}, 4, 1)),  # parts that nobody publishes
        ("norm", HeldWeight({}, 4, 1)),  # copies of k and v in one published weight
        ("norm", HeldWeight({"w1": 1, "w3": 2}, 4, 1)),  # as the learner fuses it, and workers hold a part of it twice
    ],
)
def test_a_weight_that_no_rule_covers_is_refused_by_name(name: str, weight: HeldWeight) -> None:
    held = {**worker(5, 400, 7, 50), name: weight}
    with pytest.raises(ModelError, match=f"holds 1 weight that no published weight explains.*: {name}$"):
        parts_of(held, SIZES)
