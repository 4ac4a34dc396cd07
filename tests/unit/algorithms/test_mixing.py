"""The one place that enforces G fresh, on-policy, and at most M replayed trajectories of one prompt."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlep.algorithms.mixing import mix
from rlep.core.errors import MixingError, StaleRolloutError
from rlep.core.types import STATUSES, Group, Status, Trajectory
from tests.unit.algorithms.algorithm_values import TOKENIZER, fresh_of, prompt_of, replays_of, trajectory_of

PROMPT = prompt_of()


def mixed(fresh: Sequence[Trajectory], replays: Sequence[Trajectory] = (), **options: Any) -> Group:
    """``mix`` of 2 fresh and at most 2 replays at version 7."""
    settings: dict[str, Any] = {
        "policy_version": 7,
        "fresh_count": 2,
        "max_replays": 2,
        "tokenizer_digest": TOKENIZER,
    }
    return mix(PROMPT, fresh, replays, **(settings | options))


def test_a_group_is_the_fresh_ones_then_the_replays() -> None:
    fresh, replays = fresh_of(PROMPT, "+-"), replays_of(PROMPT, 2)
    group = mixed(fresh, replays)
    assert group.members == (*fresh, *replays)
    assert (group.prompt, group.policy_version) == (PROMPT, 7)


@pytest.mark.parametrize("stored", [0, 1])
def test_a_short_pool_gives_a_smaller_group(stored: int) -> None:
    assert len(mixed(fresh_of(PROMPT, "+-"), replays_of(PROMPT, stored)).members) == 2 + stored


def test_required_replays_that_the_pool_lacks_are_refused_with_the_fix() -> None:
    with pytest.raises(MixingError, match=rf"prompt {PROMPT.id}: 1 replays where 2 are required; lower .* to 1"):
        mixed(fresh_of(PROMPT, "+-"), replays_of(PROMPT, 1), require_replays=True)
    assert len(mixed(fresh_of(PROMPT, "+-"), replays_of(PROMPT, 2), require_replays=True).replays) == 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_other_number_of_fresh_rollouts_is_refused(count: int) -> None:
    with pytest.raises(MixingError, match=rf"prompt {PROMPT.id}: {count} fresh rollouts, the group needs exactly 2"):
        mixed(fresh_of(PROMPT, "+" * count))


@pytest.mark.parametrize(("stored", "own"), [("", "new"), ("old", ""), ("new", "new"), ("old", "new")])
def test_a_replay_to_a_prompt_made_otherwise_is_refused_where_both_are_known(stored: str, own: str) -> None:
    source = replace(trajectory_of(PROMPT).provenance, template_digest=stored)
    replays = [replace(member, provenance=source) for member in replays_of(PROMPT, 1)]
    if (stored, own) != ("old", "new"):
        assert len(mixed(fresh_of(PROMPT, "+-"), replays, template_digest=own).replays) == 1
        return
    with pytest.raises(MixingError, match=r'made by template old, this run\'s are by new: .*other_template = "render"'):
        mixed(fresh_of(PROMPT, "+-"), replays, template_digest=own)


def test_more_than_m_replays_are_refused() -> None:
    with pytest.raises(MixingError, match="3 replays, the group takes at most 2"):
        mixed(fresh_of(PROMPT, "+-"), replays_of(PROMPT, 3))


@pytest.mark.parametrize("version", [6, 8])
def test_a_rollout_of_another_policy_version_is_stale(version: int) -> None:
    with pytest.raises(StaleRolloutError, match=rf"prompt {PROMPT.id}: rollout from policy {version}, step trains 7"):
        mixed([*fresh_of(PROMPT, "+"), trajectory_of(PROMPT, version=version, sample="late")])


def test_a_staleness_bound_admits_older_rollouts_up_to_it_and_never_newer_ones() -> None:
    assert len(mixed(fresh_of(PROMPT, "+-", version=5), max_staleness=2).fresh) == 2
    for version in (4, 8):
        with pytest.raises(StaleRolloutError, match=f"policy {version}, step trains 7 with staleness of at most 2"):
            mixed(fresh_of(PROMPT, "+-", version=version), max_staleness=2)


def test_replays_may_come_from_any_policy_version() -> None:
    replays = [trajectory_of(PROMPT, [v], version=v) for v in (0, 9)]
    assert mixed(fresh_of(PROMPT, "+-"), replays).replays == tuple(replays)


def test_fresh_rollouts_may_have_equal_tokens_but_not_equal_sample_ids() -> None:
    one, two = fresh_of(PROMPT, "++")
    assert one.content_id == two.content_id
    assert len(mixed([one, two]).fresh) == 2
    with pytest.raises(MixingError, match="2 fresh rollouts with sample id 'train/0'"):
        mixed([one, one])


def test_a_replay_may_stand_only_once() -> None:
    (replay,) = replays_of(PROMPT, 1)
    with pytest.raises(MixingError, match=f"2 replays with content id '{replay.content_id}'"):
        mixed(fresh_of(PROMPT, "+-"), [replay, replay])


def test_a_replay_may_equal_a_fresh_rollout() -> None:
    fresh = fresh_of(PROMPT, "+-")
    assert len(mixed(fresh, [trajectory_of(PROMPT, 3)]).members) == 3


@pytest.mark.parametrize(
    ("replay", "reason"),
    [
        (trajectory_of(PROMPT, status="wrong"), "has verdict 'wrong', only verified-correct"),
        (trajectory_of(PROMPT, status="timeout"), "has verdict 'timeout', only verified-correct"),
        (trajectory_of(PROMPT, finish="length"), "is truncated"),
        (trajectory_of(PROMPT, tokenizer="other"), "tokenizer 'other', the policy reads 'tok'"),
        (trajectory_of(prompt_of("2+2")), f"answers {prompt_of('2+2').id}"),
        (trajectory_of(PROMPT, []), "has no tokens"),
    ],
)
def test_an_unfit_replay_is_refused(replay: Trajectory, reason: str) -> None:
    with pytest.raises(MixingError, match=rf"prompt {PROMPT.id}: .*{reason}"):
        mixed(fresh_of(PROMPT, "+-"), [replay])


def test_a_replay_longer_than_any_rollout_is_refused() -> None:
    replay = trajectory_of(PROMPT, [1, 2, 3])
    assert len(mixed(fresh_of(PROMPT, "+-"), [replay], max_tokens=3).replays) == 1
    with pytest.raises(
        MixingError, match=f"replay {replay.content_id} has 3 tokens, and rollout.max_tokens is 2; raise"
    ):
        mixed(fresh_of(PROMPT, "+-"), [replay], max_tokens=2)


def test_failed_replays_may_be_allowed_but_truncated_ones_may_not() -> None:
    failed = trajectory_of(PROMPT, status="wrong")
    assert mixed(fresh_of(PROMPT, "+-"), [failed], allow_failed_replays=True).replays == (failed,)
    with pytest.raises(MixingError, match="is truncated"):
        mixed(
            fresh_of(PROMPT, "+-"),
            [trajectory_of(PROMPT, status="wrong", finish="length")],
            allow_failed_replays=True,
        )


@pytest.mark.parametrize("status", sorted({*STATUSES} - {"correct", "wrong"}))
def test_a_failed_replay_is_one_that_was_found_wrong(status: Status) -> None:
    with pytest.raises(
        MixingError, match=rf"prompt {PROMPT.id}: .*has verdict '{status}', only correct and wrong ones"
    ):
        mixed(fresh_of(PROMPT, "+-"), [trajectory_of(PROMPT, status=status)], allow_failed_replays=True)


def test_a_fresh_rollout_of_another_prompt_is_refused() -> None:
    with pytest.raises(MixingError, match=rf"prompt {PROMPT.id}: trajectory 'x' answers"):
        mixed([*fresh_of(PROMPT, "+"), trajectory_of(prompt_of("2+2"), sample="x")])


def test_the_errors_survive_a_process_boundary() -> None:
    with pytest.raises(StaleRolloutError) as caught:
        mixed(fresh_of(PROMPT, "+-", version=3))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("where", ["fresh", "replay"])
def test_a_token_id_beyond_the_vocabulary_is_refused(where: str) -> None:
    fresh, replays = fresh_of(PROMPT, "+-"), [trajectory_of(PROMPT, [41, 99_999, 2], version=0, sample="old/0")]
    if where == "fresh":
        fresh, replays = [trajectory_of(PROMPT, [99_999], version=7, sample="train/9"), fresh[0]], []
    beyond = (replays or fresh)[0]
    reason = f"prompt {PROMPT.id}: trajectory {beyond.content_id}: token id 99999 ≥ vocabulary 42"
    with pytest.raises(MixingError, match=reason):
        mixed(fresh, replays, vocabulary=42)
    assert mixed(fresh, replays, vocabulary=100_000).members == (*fresh, *replays)
