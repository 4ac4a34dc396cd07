"""Draws among a run's own responses, against rules that can be worked out by hand."""

from rlep.algorithms.live_draws import draw_ids, seen
from rlep.core.draws import draw_uniform

BIRTHS = {"a": 1, "b": 3, "c": 3, "d": 5, "e": 9}
PROMPT = "0" * 32


def test_a_step_sees_the_newest_that_were_born_before_it() -> None:
    assert seen(BIRTHS, 9, per_question=2, max_age=0) == {"d", "b"}  # e is born in step 9; of b and c the smaller id
    assert seen(BIRTHS, 10, per_question=9, max_age=5) == {"d", "e"}  # born in step 5 or later
    assert seen(BIRTHS, 1, per_question=9, max_age=0) == set()


def test_what_a_step_has_ceased_to_see_no_later_one_sees() -> None:
    for step in range(1, 12):
        left = {name for name, birth in BIRTHS.items() if birth < step} - seen(BIRTHS, step, per_question=2, max_age=4)
        assert not left & seen(BIRTHS, step + 1, per_question=2, max_age=4)


def test_a_uniform_draw_is_the_pools_own_and_needs_the_minimum() -> None:
    candidates = {PROMPT: ["a", "b", "c", "d"], "1" * 32: ["x"]}
    picks, _ = draw_uniform([PROMPT], [4], 2, seed=3, step=7)
    assert draw_ids(candidates, 2, minimum=2, seed=3, step=7) == {
        PROMPT: [candidates[PROMPT][pick] for pick in picks],
        "1" * 32: [],
    }


def test_a_draw_by_age_prefers_the_young() -> None:
    births = {PROMPT: {"old": 0, "young": 99}}
    drawn = [
        draw_ids({PROMPT: ["old", "young"]}, 1, minimum=1, seed=0, step=step, births=births, decay=1.0)[PROMPT]
        for step in range(100, 200)
    ]
    assert drawn == [["young"]] * 100  # the weight of the old one is e^-99 of the young one's
