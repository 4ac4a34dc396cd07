"""``Replayer`` on a real pool server: draws that others can repeat, what counts as a success, births and rewinds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep import PoolClient
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.types import Provenance, prompt_id_of
from rlep.integrations import replayer as replayer_module
from rlep.integrations.replayer import Origin, Replayer, Row
from rlep.integrations.rewards import REWARD
from rlep.integrations.rule import replay_rule
from rlep.services.pool import pool as pool_module
from tests.late_method import LATE
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.pool_process import pool_process
from tests.services.pool.pool_servers import reserved_address

A, B = prompt_id_of("A", ""), prompt_id_of("B", "")
ORIGIN = Origin(
    "run", "tokenizer-digest", "template-digest", vocabulary=100, max_tokens=8, limit="max_completion_length"
)


def replayer(pool: PoolClient, count: int = 2, origin: Origin = ORIGIN, **given: Any) -> Replayer:
    """One whose options are split from the keys of ``[replay]``."""
    options = {name: given.pop(name) for name in ("seed", "steps", "away", "restart", "success") if name in given}
    return Replayer(pool, origin, replay_rule(count, **given), **options)


def row(*tokens: int, prompt: str = A, reward: float | None = 1.0, finished: bool = True) -> Row:
    return Row(prompt, np.array(tokens, np.int32), reward, finished)


def born(replay: Replayer, step: int, rows: Iterable[Row]) -> None:
    """One whole step of a trainer."""
    replay.draw(step, [A, B])
    replay.keep(step, rows)


def tokens(replay: Replayer, step: int, prompt: str = A) -> list[tuple[int, ...]]:
    """The replays of one prompt, ascending."""
    return sorted(tuple(member.tokens.tolist()) for member in replay.draw(step, [prompt]).get(prompt, ()))


def test_a_success_comes_back_in_later_steps_with_its_birth(pool_of: OpenPool) -> None:
    replay = replayer(pool_of())
    assert replay.draw(3, [A, B]) == {}
    replay.keep(3, [row(1, 2), row(3, reward=0.0), row(4, prompt=B)])
    assert replay.draw(3, [A, B]) == {}  # a step does not see what it stored itself
    drawn = replay.draw(5, [B, A])
    assert {
        name: [(member.tokens.tolist(), member.birth) for member in members] for name, members in drawn.items()
    } == {
        A: [([1, 2], 3)],
        B: [([4], 3)],
    }
    counts = replay.take_counts()
    assert (counts.rows, counts.empty, counts.stored, counts.live, counts.age) == (2, 4, 2, 2, 2.0)
    assert (replay.take_counts().rows, replay.take_counts().age) == (0, None)


def test_the_age_of_what_other_runs_stored_is_not_known(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        born(replayer(pool, origin=replace(ORIGIN, run="teacher")), 0, [row(90), row(91, prompt=B)])
    replay = replayer(pool_of())
    replay.draw(4, [A, B])
    counts = replay.take_counts()
    assert (counts.rows, counts.live, counts.age) == (2, 0, None)
    replay.keep(4, [row(1), row(2)])
    replay.draw(5, [B])
    replay.keep(5, [])
    assert {len(member.tokens) for member in replay.draw(7, [A])[A]} == {1}
    ages = [7 - member.birth for member in replay.draw(7, [A])[A] if member.birth >= 0]
    counts = replay.take_counts()
    assert counts.rows == 1 + 2 + 2
    assert counts.live == 2 * len(ages) > 0
    assert counts.age == 3.0  # all of them were born in step 4


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e39])
def test_a_reward_that_is_not_finite_is_not_stored_nor_replayed_and_said_once(
    pool_of: OpenPool, caplog: pytest.LogCaptureFixture, reward: float
) -> None:
    replay = replayer(pool_of())
    with caplog.at_level(logging.WARNING, replayer_module.__name__):
        born(replay, 0, [row(1, reward=reward), row(2)])
        born(replay, 1, [row(3, reward=reward)])
    assert caplog.messages == [
        f"reward gave 1 of 2 responses of step 0 a reward that is not finite ({reward}): such responses are not stored"
    ]
    assert tokens(replay, 2) == [(2,)]
    members = [replace(member, metadata={REWARD: repr(reward)}) for member in pool_of().export()]
    name = f"filled-{abs(reward):.0f}-{reward > 0}"
    with pool_of(name) as filled:  # as an older version filled one
        born(replayer(filled, origin=replace(ORIGIN, run="teacher")), 0, [])
        filled.add(members)
    with caplog.at_level(logging.WARNING, replayer_module.__name__):
        assert tokens(replayer(pool_of(name), origin=replace(ORIGIN, run="later")), 0) == []
    assert caplog.messages[1:] == [
        f"pool {name} holds responses that this run cannot train on, which are left out and counted as unfit; the first: "
        "its stored reward is not finite"
    ]


def test_a_success_has_a_finite_reward(pool_of: OpenPool) -> None:
    with pytest.raises(ConfigError, match=r"success = nan: give a reward that float32 holds"):
        replayer(pool_of(), success=math.nan)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"reward": 1.0}, True),
        ({"reward": 1.5}, True),
        ({"reward": 0.999}, False),
        ({"reward": None}, False),
        ({"reward": math.nan}, False),
        ({"reward": math.inf}, False),
        ({"reward": -math.inf}, False),
        ({"reward": 1e39}, False),  # infinite in float32, in which trainers compute advantages
        ({"finished": False}, False),
    ],
)
def test_one_rule_says_what_a_success_is(pool_of: OpenPool, given: dict[str, Any], kept: bool) -> None:
    replay = replayer(pool_of())
    assert replay.is_success(row(1, **given)) is kept
    assert not replay.is_success(replace(row(1), tokens=np.zeros(0, np.int32)))
    assert replayer(pool_of(), success=0.5).is_success(row(1, reward=0.5))


def test_processes_draw_alike_without_talking(pool_of: OpenPool) -> None:
    first = replayer(pool_of(), seed=7)
    other = replayer(pool_of(), seed=7, origin=replace(ORIGIN, main=False))
    first.draw(0, [A])
    other.draw(0, [B])
    first.keep(0, [row(number) for number in range(1, 6)])
    other.keep(0, [row(number, prompt=B) for number in range(1, 6)])
    chosen = [tuple(tokens(first, step)) for step in range(1, 30)]
    assert chosen == [tuple(tokens(other, step)) for step in range(1, 30)]
    assert len(set(chosen)) == 10  # all pairs of five come in 29 draws with this seed
    unlike = replayer(pool_of(), seed=8, origin=replace(ORIGIN, main=False))
    assert [tuple(tokens(unlike, step)) for step in range(1, 30)] != chosen


def test_a_resumed_run_finds_the_pool_of_its_step_again(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        replay = replayer(pool)
        for step in range(3):
            born(replay, step, [row(step + 1), row(1, prompt=B)])
        digest, drawn = pool.digest(), tokens(replay, 3)
        born(replay, 3, [row(4)])
        born(replay, 4, [row(2), row(5, prompt=B)])  # 2 was born in step 1
    pool = pool_of()
    assert tokens(replayer(pool), 3) == drawn
    assert pool.digest() == digest
    assert pool.stats().by_policy == {"run@0": 2, "run@1": 1, "run@2": 1}


@pytest.mark.parametrize("listed_bytes", [1 << 22, 0])
def test_an_earlier_start_is_not_taken_for_this_one(
    pool_of: OpenPool, monkeypatch: pytest.MonkeyPatch, listed_bytes: int
) -> None:
    """Also where the pool has so many runs that its statistics do not list this one."""
    monkeypatch.setattr(pool_module, "_LISTED_BYTES", listed_bytes)
    with pool_of() as pool:
        born(replayer(pool), 0, [row(1), row(2, prompt=B)])
    with (
        pool_of() as pool,
        pytest.raises(PoolError, match="2 responses of an earlier start of run run, and this one begins at step 0"),
    ):
        replayer(pool).draw(0, [A])
    with pool_of() as pool:
        assert replayer(pool, origin=replace(ORIGIN, run="another")).draw(0, [A]).keys() == {A}
    with pool_of() as pool:
        assert replayer(pool, restart=True).draw(0, [A]) == {}
        assert pool.stats().trajectories == 0


def test_a_trainer_that_starts_again_in_its_process_is_rewound_too(pool_of: OpenPool) -> None:
    replay = replayer(pool_of())
    for step in range(4):
        born(replay, step, [row(step + 1)])
    assert tokens(replay, 2) == [(1,), (2,)]  # resumed at step 2: what was born in 2 and 3 is gone
    assert pool_of().stats().by_policy == {"run@0": 1, "run@1": 1}
    with pytest.raises(PoolError, match="2 responses of an earlier start of run run, and this one begins at step 0"):
        replay.draw(0, [A])


def test_what_no_later_step_sees_is_removed(pool_of: OpenPool) -> None:
    """Two responses of a prompt are seen: nothing goes until two others are there that none sees from the oldest step on."""
    with pool_of() as pool:
        born(replayer(pool, origin=replace(ORIGIN, run="teacher")), 0, [row(90), row(91), row(92)])
    pool = pool_of()
    replay = replayer(pool, 9, per_question=2)
    for step in range(6):
        replay.draw(step, [A])
        replay.trim(min(step, 4))  # a checkpoint at step 4
        replay.keep(step, [row(step + 1)])
        assert len(pool.content_ids(A)) - 3 == {0: 1, 1: 2, 2: 3, 3: 4, 4: 3, 5: 4}[step]
    assert tokens(replay, 4) == [(3,), (4,), (90,), (91,), (92,)]  # resumed there
    assert (replay.take_counts().removed, pool.stats().by_policy) == (2, {"run@2": 1, "run@3": 1, "teacher@0": 3})


def test_old_responses_are_removed_where_age_ends_them(pool_of: OpenPool) -> None:
    pool = pool_of()
    replay = replayer(pool, 9, per_question=2, max_age=1)
    born(replay, 0, [row(1), row(2)])
    replay.draw(1, [A])
    replay.trim(1)  # both are one step old
    assert len(pool.content_ids(A)) == 2
    replay.draw(2, [A, B])
    replay.trim(2)
    assert pool.content_ids(A) == []
    born(replay, 2, [row(1)])  # said again, it is new
    assert tokens(replay, 3) == [(1,)]


def test_a_token_that_may_not_remove_leaves_all(
    pool_of: OpenPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def remove(*_: object) -> int:
        raise PoolError("pool a: removing needs a token of role admin")

    pool = pool_of()
    replay = replayer(pool, 9, per_question=1)
    born(replay, 0, [row(1), row(2), row(3)])
    monkeypatch.setattr(pool, "remove", remove)
    with caplog.at_level(logging.WARNING, replayer_module.__name__):
        for step in (1, 2):
            replay.draw(step, [A])
            replay.trim(step)
    assert caplog.messages == [
        "what no later step sees stays in the pool: pool a: removing needs a token of role admin"
    ]
    assert len(pool.content_ids(A)) == 3


def test_a_server_that_goes_in_the_middle_of_a_run_loses_what_is_counted_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayer_module, "PAUSE_S", 0.0)
    with reserved_address() as address, PoolClient(address, pool="late", deadline=4) as pool:
        replay = replayer(pool)
        with pool_process(tmp_path, address):
            born(replay, 0, [row(1), row(2)])
        assert replay.draw(1, [A]) == {}
        replay.keep(1, [row(3)])
        with pool_process(tmp_path, address):
            assert tokens(replay, 2) == [(1,), (2,)]
        counts = replay.take_counts()
        assert (counts.stored, counts.lost, counts.away, counts.rows) == (2, 1, 2, 2)


def test_a_pool_that_is_sealed_under_the_run_says_so(pool_of: OpenPool) -> None:
    replay = replayer(pool_of())
    born(replay, 0, [row(1)])
    pool_of().seal()
    assert tokens(replay, 1) == [(1,)]
    with pytest.raises(PoolError, match="is sealed"):
        replay.keep(1, [row(2)])


def test_an_incarnation_that_was_replaced_cannot_write(pool_of: OpenPool) -> None:
    pool = pool_of()
    old = replayer(pool)
    born(old, 0, [row(1)])
    assert pool._lease is not None
    pool._lease.close()  # as it ends after 30 s without a sign of life
    new = replayer(pool_of())
    new.draw(1, [A])
    with pytest.raises(PoolError, match="epoch"):
        old.keep(1, [row(2)])
    assert tokens(new, 2) == [(1,)]


def test_age_and_number_of_own_responses_are_bounded_and_others_are_not(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        born(replayer(pool, origin=replace(ORIGIN, run="teacher")), 0, [row(90), row(91)])
    replay = replayer(pool_of(), 9, per_question=2, max_age=3)
    for step in range(4):
        born(replay, step, [row(step + 1)])
    assert tokens(replay, 4) == [(3,), (4,), (90,), (91,)]  # of the four the newest two
    assert tokens(replay, 6) == [(4,), (90,), (91,)]  # 3 was born in step 2, four steps ago
    live = replayer(pool_of(), 9, source="live", origin=replace(ORIGIN, main=False))
    assert tokens(live, 4) == [(1,), (2,), (3,), (4,)]
    assert tokens(replayer(pool_of(), 9, minimum=5, origin=replace(ORIGIN, main=False)), 4) == [
        *((number,) for number in range(1, 5)),
        (90,),
        (91,),
    ]
    assert tokens(replayer(pool_of(), 9, minimum=7, origin=replace(ORIGIN, main=False)), 4) == []


def test_selections_of_rlep_choose_here_too(pool_of: OpenPool) -> None:
    pool = pool_of()
    replay = replayer(pool)
    born(replay, 0, [row(1, 2, 3), row(4)])
    born(replay, 1, [row(5, 6)])
    others = replace(ORIGIN, main=False)
    assert tokens(replayer(pool, 1, selection="newest", origin=others), 2) == [(5, 6)]
    assert tokens(replayer(pool, 2, selection="shortest", origin=others), 2) == [(4,), (5, 6)]
    aged = replayer(pool, 1, source="live", age_decay=0.01, origin=others)
    assert [tokens(aged, step) for step in range(2, 12)] == [[(5, 6)]] * 10  # e^-100 to one


def test_a_method_file_chooses(pool_of: OpenPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "longest_method.py").write_text(
        "from rlep.methods.live import Live\n\n\n"
        "class Longest(Live):\n"
        "    def with_replays(self, step, prompt_ids):\n"
        "        return prompt_ids[:1]\n\n"
        "    def choose(self, step, prompt_id, stored, count):\n"
        "        return sorted(stored, key=lambda member: -len(member.tokens))[:count]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    replay = replayer(pool_of(), 1, method="python:longest_method:Longest")
    replay.draw(0, [A])
    replay.keep(0, [row(1), row(1, 2), row(3, prompt=B)])
    assert {
        name: [member.tokens.tolist() for member in members] for name, members in replay.draw(1, [A, B]).items()
    } == {A: [[1, 2]]}


def test_an_offline_pool_is_drawn_from_as_rlep_draws_and_not_written(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        born(replayer(pool, origin=replace(ORIGIN, run="collected")), 0, [row(number) for number in range(1, 8)])
        pool.seal()
    pool = pool_of()
    with pytest.raises(PoolError, match='is sealed, and nothing can be added: source="offline"'):
        replayer(pool).draw(0, [A])
    replay = replayer(pool_of(), method="rlep", seed=3)
    drawn = replay.draw(9, [A, B])
    stored = pool.sample([A], 2, seed=3, step=9).trajectories()[A]
    assert [member.content_id for member in drawn[A]] == [member.content_id for member in stored]
    replay.keep(9, [row(50)])
    assert (pool.stats().trajectories, replay.take_counts().stored) == (7, 0)


def test_a_schedule_ends_with_the_run(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        born(replayer(pool, origin=replace(ORIGIN, run="earlier")), 0, [row(number) for number in range(4)])
    replay = replayer(pool_of(), 4, schedule="linear", start_step=2, steps=8)
    counts = [len(tokens(replay, step)) for step in range(9)]
    assert counts == [0, 0, 3, 3, 2, 2, 1, 1, 0]  # 4 − k/2, half up
    late = replayer(pool_of(), 2, origin=replace(ORIGIN, main=False), schedule="linear", start_step=100, steps=1000)
    assert [len(tokens(late, step)) for step in (99, 100, 700, 900)] == [0, 2, 1, 0]  # 2 − k/500, half up
    with pytest.raises(ConfigError, match="start_step = 100 rounds to no replay in any of 104 steps"):
        replayer(pool_of(), 2, schedule="linear", start_step=100, steps=104)
    with pytest.raises(ConfigError, match="steps = 0: a linear replay schedule needs its length"):
        replayer(pool_of(), 4, schedule="linear")


def test_a_pool_of_another_tokenizer_or_template_is_refused_with_both_digests(pool_of: OpenPool) -> None:
    with pool_of() as pool:
        born(replayer(pool), 0, [row(1)])
    with pytest.raises(PoolError, match=r"tokenizer tokenizer-digest; this run's is other-digest"):
        replayer(pool_of(), origin=replace(ORIGIN, tokenizer_digest="other-digest")).draw(0, [A])
    with pytest.raises(PoolError, match=r"chat template template-digest; this run's is other-template"):
        replayer(pool_of(), origin=replace(ORIGIN, template_digest="other-template", main=False)).draw(0, [B])


def test_responses_that_a_run_cannot_train_on_are_left_out_and_counted(
    pool_of: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """What others put into a shared pool does not end a run."""
    with pool_of() as pool:
        born(replayer(pool), 0, [row(1, 2, 3, 99), row(7)])
        member = next(one for one in pool.export() if len(one.tokens) == 1)
        for digest in ("template_digest", "environment_digest"):
            foreign = {**asdict(member.provenance), "sampling": member.provenance.sampling, digest: "another"}
            tokens_of = np.array([len(digest)], np.int32)
            assert pool.add([replace(member, tokens=tokens_of, provenance=Provenance(**foreign))]).inserted == 1
    other = replace(ORIGIN, main=False, run="other")
    for origin in (replace(other, max_tokens=3), replace(other, vocabulary=64)):
        run = replayer(pool_of(), 4, origin=origin, source="offline")
        with caplog.at_level(logging.WARNING, replayer_module.__name__):
            caplog.clear()
            assert tokens(run, 1) == [(7,)]
        counts = run.take_counts()
        assert (counts.rows, counts.unfit, len(caplog.messages)) == (1, 3, 1)
        assert "holds responses that this run cannot train on" in caplog.messages[0]


def test_training_goes_on_without_a_server_and_says_so_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved_address() as address, PoolClient(address, pool="late", deadline=0.3) as pool:
        replay = replayer(pool)
        with caplog.at_level(logging.WARNING, replayer_module.__name__):
            for step in range(5):
                born(replay, step, [row(1), row(2)])
        counts = replay.take_counts()
        assert (counts.away, counts.lost, counts.stored) == (5, 10, 0)
        (line,) = caplog.messages
        assert "training goes on without replays, the pool is asked again in 60 s" in line
        assert f"pool server {address}: not done within 0.3 s" in line
        with pytest.raises(DeadlineExceeded, match="nobody listens there"):
            replayer(pool, away="stop").draw(0, [A])
    monkeypatch.setattr(replayer_module, "PAUSE_S", 0.0)
    with reserved_address() as address, PoolClient(address, pool="late", deadline=3) as pool:
        replay = replayer(pool)
        born(replay, 0, [row(1)])
        with pool_process(tmp_path, address):
            replay.keep(1, [row(2)])  # still unknown whether the pool is this run's
            born(replay, 2, [row(3)])
            assert (tokens(replay, 3), replay.take_counts().lost) == ([(3,)], 2)


def test_replays_can_be_decided_on_when_rewards_are_known(pool_of: OpenPool) -> None:
    late = replayer(pool_of(), 1, method=LATE)
    assert late.decides_late
    assert late.accepts([row(1, reward=0.0), row(2, reward=0.0)])
    assert not late.accepts([row(1, reward=0.0), row(2)])
    below = replayer(pool_of(), only_below=0.5)
    assert [below.accepts([row(1, reward=0.0), other]) for other in (row(2), row(2, reward=0.0))] == [False, True]
    assert not replayer(pool_of()).decides_late


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "replay.count = 0: nothing would be replayed"),
        ({"count": -1}, "replay.count = -1: must be at least 0"),
        ({"weight": 2.0}, "replay.weight: groups and their loss are the trainer's own"),
        ({"old_logprobs": "behaviour"}, "replay.old_logprobs: groups and their loss"),
        ({"method": "luffy"}, 'old_logprobs = "unit", shaping = 0.1 is no part of the trainer\'s loss'),
        ({"method": "nobody"}, "choose rlep, live, exgrpo"),
        ({"selection": "most-probable"}, "scores all stored responses under the current policy"),
        ({"selection": "recent"}, '"recent" goes by the clock'),
        ({"age_decay": 2.0}, 'replay.age_decay = 2 needs replay.source = "live", not "both"'),
        ({"max_age": "old"}, "replay.max_age = 'old': must be a whole number"),
        ({"options": {"ratio": 1}}, "replay.options.ratio: Live has no options"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_choice_that_cannot_be_followed_is_refused(pool_of: OpenPool, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replayer(pool_of(), **given)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("name", "run", "sentence"), [("", "run", "names no pool"), ("a", "", "a run needs a name")])
def test_pool_and_run_have_names(pool_of: OpenPool, name: str, run: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replayer(pool_of(name), origin=replace(ORIGIN, run=run))


def test_a_stored_response_says_its_reward(pool_of: OpenPool) -> None:
    replay = replayer(pool_of(), success=0.5)
    born(replay, 0, [row(1, reward=0.75), row(2, reward=1.0)])
    rewards = {member.tokens[0]: member.metadata[REWARD] for member in replay.draw(1, [A])[A]}
    assert rewards == {1: "0.75", 2: "1.0"}


def test_the_last_places_of_a_group_are_its_replays(pool_of: OpenPool) -> None:
    replay = replayer(pool_of())
    born(replay, 0, [row(1), row(2), row(3, prompt=B)])

    def filled(prompts: list[str], size: int, first: int = 0) -> list[list[int] | None]:
        rows = replay.fill(1, prompts, size, first)
        return [None if member is None else member.tokens.tolist() for member in rows]

    of_a = [member.tokens.tolist() for member in replay.draw(1, [A])[A]]
    assert filled([A] * 4 + [B] * 4, 4) == [None, None, *of_a, None, None, None, [3]]
    assert filled([A] * 3 + [B] * 2, 4, first=5) == [None, *of_a, None, None]  # as the middle one of three processes
    with pytest.raises(ConfigError, match="size = 2 with count = 2: a group needs a fresh response"):
        replay.fill(1, [A, A], 2)
    with pytest.raises(
        ConfigError, match="rows 1 and 2 are of one group of size = 4 and of two prompts: a step's rows must be whole"
    ):
        replay.fill(1, [A, A, B, B], 4)
    with pytest.raises(ConfigError, match=r"or replay\.only_below: rewards would say who gets replays"):
        replayer(pool_of(), only_below=0.5).fill(0, [A] * 4, 4)
