"""Grading a pool again, pruning it, examining it, and measuring what it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlep import PoolClient
from rlep.cli.pool.look import find
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError, PoolError, RecordRefused
from rlep.core.types import Asked, Status, Trajectory, Verdict
from rlep.services.pool.files.records import export_records, import_records
from rlep.services.pool.maintenance.check_records import check_records
from rlep.services.pool.maintenance.measure import distinctness, measure
from rlep.services.pool.maintenance.prune import Criteria, prune
from rlep.services.pool.maintenance.reverify import Difference, reverify
from rlep.services.pool.storage.store import NewRecord
from rlep.services.verifier.base import BaseVerifier
from rlep.services.verifier.grader import configured_verifier
from tests.services.conftest import MakeTrajectory, OpenClient, OpenPool, any_binary
from tests.services.pool.pool_texts import Letters

LETTERS = Letters()
binary = any_binary


def answer(make: MakeTrajectory, prompt_id: str, text: str, extracted: str = "42") -> Trajectory:
    """An answer with this text, which a verifier of version 1 found correct."""
    one = make(prompt_id, LETTERS.encode_response(text).tolist(), tokenizer=LETTERS.digest)
    return replace(one, verdict=replace(one.verdict, extracted=extracted))


def test_verify_quarantines_what_no_longer_passes_and_reports_every_difference(
    open_client: OpenClient, trajectory: MakeTrajectory, grader: BaseVerifier
) -> None:
    pool = open_client(tokenizer=LETTERS.digest)
    good, bad, reread, unknown = (
        answer(trajectory, "q0", r"\boxed{42}"),
        answer(trajectory, "q0", r"\boxed{41}"),
        answer(trajectory, "q1", r"\boxed{1/2}", extracted="0.5"),
        answer(trajectory, "q2", r"\boxed{5}"),
    )
    pool.add([good, bad, reread, unknown])
    references = {"q0": "42", "q1": "0.5"}  # the reference of q2 was changed: a question of another id now
    looked = reverify(pool, references, LETTERS, grader.grade_pairs, quarantine=False, report=lambda _: None)
    assert (looked.failed, looked.quarantined, pool.stats().trajectories) == (1, 0, 4)
    differences: list[Difference] = []
    done: list[int] = []
    result = reverify(
        pool, references, LETTERS, grader.grade_pairs, quarantine=True, report=differences.append, advance=done.append
    )
    assert (result.graded, dict(result.statuses), result.reread) == (3, {"correct": 2, "wrong": 1}, 1)
    assert (result.quarantined, result.unknown, result.unknown_questions) == (1, 1, 1)
    assert sum(done) == 4
    changed = {
        d.content_id: (d.before.extracted, d.after.status, d.after.extracted, d.quarantined) for d in differences
    }
    assert changed == {
        bad.content_id: ("42", "wrong", "41", True),
        reread.content_id: ("0.5", "correct", "1/2", False),
    }
    assert pool.content_ids("q0") == [good.content_id]
    assert pool.content_ids("q2") == [unknown.content_id]
    assert pool.add([bad]).refused[0][1].startswith("quarantined")
    again = reverify(pool, references, LETTERS, grader.grade_pairs, quarantine=True, report=lambda _: None)
    assert (again.graded, again.failed, again.quarantined) == (2, 0, 0)


class Fixed:
    """A verifier that always finds the same."""

    def __init__(self, status: Status, extracted: str | None = None, score: float | None = None) -> None:
        self._verdict = Verdict(status, extracted, "math", "2", score=score)

    def grade_pairs(self, pairs):  # type: ignore[no-untyped-def]
        return [self._verdict for _ in pairs]


@pytest.mark.parametrize(
    ("status", "quarantined"),
    [("wrong", 1), ("no_answer", 1), ("unparsable", 1), ("timeout", 0), ("out_of_memory", 0), ("crashed", 0)],
)
def test_only_verdicts_on_the_answer_itself_quarantine_it(
    open_client: OpenClient, trajectory: MakeTrajectory, status: Status, quarantined: int
) -> None:
    pool = open_client(tokenizer=LETTERS.digest)
    pool.add([answer(trajectory, "q0", "x")])
    differences: list[Difference] = []
    result = reverify(
        pool, {"q0": "42"}, LETTERS, Fixed(status).grade_pairs, quarantine=True, report=differences.append
    )
    assert (result.quarantined, result.failed, len(differences)) == (quarantined, quarantined, 1)
    assert pool.stats().trajectories == 1 - quarantined


@pytest.mark.parametrize(("score", "reread"), [(None, 0), (1.0, 0), (0.75, 1)])
def test_another_score_of_a_correct_answer_is_reported_and_not_quarantined(
    open_client: OpenClient, trajectory: MakeTrajectory, score: float | None, reread: int
) -> None:
    pool = open_client(tokenizer=LETTERS.digest)
    pool.add([answer(trajectory, "q0", "x")])  # without a score: as good as 1
    differences: list[Difference] = []
    found = Fixed("correct", "42", score)
    result = reverify(pool, {"q0": "42"}, LETTERS, found.grade_pairs, quarantine=True, report=differences.append)
    assert (result.reread, result.failed, result.quarantined, len(differences)) == (reread, 0, 0, reread)


def test_in_a_pool_of_wrong_answers_those_that_are_right_go(
    open_client: OpenClient, trajectory: MakeTrajectory, grader: BaseVerifier
) -> None:
    pool = open_client("care.failures", LETTERS.digest)
    wrong, right = (
        replace(one, verdict=replace(one.verdict, status="wrong", extracted="41"))
        for one in (answer(trajectory, "q0", r"\boxed{41}"), answer(trajectory, "q0", r"\boxed{42}"))
    )
    assert pool.add([wrong, right]).inserted == 2
    result = reverify(pool, {"q0": "42"}, LETTERS, grader.grade_pairs, quarantine=True, report=lambda _: None)
    assert (dict(result.statuses), result.failed, result.quarantined) == ({"wrong": 1, "correct": 1}, 1, 1)
    assert pool.content_ids("q0") == [wrong.content_id]


def test_a_sealed_pool_can_be_looked_at_but_not_quarantined(
    open_client: OpenClient, trajectory: MakeTrajectory, grader: BaseVerifier
) -> None:
    pool = open_client(tokenizer=LETTERS.digest)
    pool.add([answer(trajectory, "q0", r"\boxed{1}")])
    pool.seal()
    with pytest.raises(PoolError, match=r"is sealed: nothing can be set aside in it; only look \(--dry-run\)"):
        reverify(pool, {"q0": "42"}, LETTERS, grader.grade_pairs, quarantine=True, report=lambda _: None)
    assert (
        reverify(pool, {"q0": "42"}, LETTERS, grader.grade_pairs, quarantine=False, report=lambda _: None).failed == 1
    )


def test_a_box_in_thinking_that_the_prompt_opened_is_set_aside(
    open_client: OpenClient, trajectory: MakeTrajectory, grader: BaseVerifier
) -> None:
    pool = open_client(tokenizer=LETTERS.digest)
    pool.add([answer(trajectory, "q0", r"\boxed{42}, no, wait"), answer(trajectory, "q0", r"hm</think>\boxed{42}")])
    found = reverify(
        pool,
        {"q0": "42"},
        LETTERS,
        grader.grade_pairs,
        quarantine=True,
        report=lambda _: None,
        openings={"q0": "<think>"},
    )
    assert (dict(found.statuses), found.quarantined) == ({"correct": 1, "no_answer": 1}, 1)


def test_texts_of_another_tokenizer_are_not_graded(open_client: OpenClient, grader: BaseVerifier) -> None:
    pool = open_client(tokenizer="another")
    with pytest.raises(PoolError, match=r"the tokenizer is letters; pool .* has another"):
        reverify(pool, {}, LETTERS, grader.grade_pairs, quarantine=False, report=lambda _: None)


@pytest.fixture
def aged(open_client: OpenClient, trajectory: MakeTrajectory) -> tuple[PoolClient, dict[str, Trajectory]]:
    """Question q0 with six answers named by policy version and age, q1 with one."""
    pool = open_client()
    made = {
        f"{version}{'old' if old else 'new'}{k}": replace(
            trajectory("q0", [version, old, k], policy_version=version, verifier_version=str(version)),
            created_at=100.0 if old else 200.0,
        )
        for version, old, k in [(1, 1, 0), (1, 1, 1), (1, 0, 0), (2, 1, 0), (2, 0, 0), (2, 0, 1)]
    }
    pool.add([*made.values(), replace(trajectory("q1", [1], policy_version=1), created_at=100.0)])
    return pool, made


@pytest.mark.parametrize(
    ("criteria", "gone", "emptied"),
    [
        (Criteria(policy="policy@1"), {"1old0", "1old1", "1new0"}, 1),
        (Criteria(policy="policy@*", before=150.0), {"1old0", "1old1", "2old0"}, 1),
        (Criteria(verifier="math@2", before=200.0), {"2old0"}, 0),
        (Criteria(verifier="math@2", before=200.1), {"2old0", "2new0", "2new1"}, 0),
        (Criteria(policy="policy@1", keep=3), {"1old0", "1old1", "1new0"}, 0),  # q1 has fewer than 3
        (Criteria(policy="other@*"), set(), 0),
    ],
)
def test_pruning_takes_what_meets_every_criterion(
    aged: tuple[PoolClient, dict[str, Trajectory]], criteria: Criteria, gone: set[str], emptied: int
) -> None:
    pool, made = aged
    before = pool.digest()
    planned = prune(pool, criteria, dry_run=True)
    assert pool.digest() == before
    assert prune(pool, criteria, dry_run=False) == planned
    left = set(pool.content_ids("q0"))
    assert {name for name, one in made.items() if one.content_id not in left} == gone
    assert (planned.examined, planned.removed, planned.emptied) == (7, len(gone) + emptied, emptied)
    assert pool.add([made[name] for name in gone]).inserted == len(gone)  # removed, not quarantined


def test_pruning_to_a_number_keeps_the_smallest_ids(
    aged: tuple[PoolClient, dict[str, Trajectory]],
) -> None:
    pool, made = aged
    ids = sorted(one.content_id for one in made.values())
    result = prune(pool, Criteria(keep=3), dry_run=False)
    assert pool.content_ids("q0") == ids[:3]
    assert (result.examined, result.removed, result.emptied) == (7, 3, 0)


def test_pruning_without_a_criterion_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing says what to prune"):
        Criteria()


def test_a_check_names_damaged_records_and_a_repair_removes_them(
    open_client: OpenClient, open_pool: OpenPool, trajectory: MakeTrajectory
) -> None:
    pool, beneath = open_client(), open_pool()
    good, aside = trajectory("q0", [1]), trajectory("q0", [2])
    pool.add([good, aside])
    pool.remove("q0", [aside.content_id], quarantine=True)
    ((_, _, blob, _),) = pool.records(["q0"])
    flipped = blob[:-1] + bytes([blob[-1] ^ 1])
    beneath.add_entries(
        [NewRecord("q1", b"\1" * 16, "p@1\nm@1", flipped), NewRecord("q1", b"\2" * 16, "p@1\nm@1", blob)]
    )
    beneath.store.set_aside([NewRecord("q2", b"\3" * 16, "p@1\nm@1", b"nothing")])
    found = check_records(pool, repair=False)
    assert (found.records, found.quarantined, found.counted, found.damaged, found.removed) == (3, 2, 3, 3, 0)
    assert [(prompt_id, content_id[:2]) for prompt_id, content_id, _ in found.examples] == [
        ("q1", "01"),
        ("q1", "02"),
        ("q2", "03"),
    ]
    assert [reason.split(" ", 2)[1] for _, _, reason in found.examples] == ["checksum", "stored", "of"]
    with pytest.raises(RecordRefused, match=f"trajectory {'01' * 16} of prompt q1: record's checksum"):
        measure(pool, questions=0)
    repaired = check_records(pool, repair=True)
    assert (repaired.damaged, repaired.removed) == (3, 3)
    assert check_records(pool, repair=False).damaged == 0
    assert pool.content_ids("q0") == [good.content_id]


def test_what_is_only_quarantined_survives_two_exports(
    open_client: OpenClient, twin: PoolClient, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_client()
    bad = trajectory("q0", [1])
    pool.add([bad])
    pool.remove("q0", [bad.content_id], quarantine=True)
    one = export_records(pool, tmp_path / "one")
    assert import_records(twin, tmp_path / "one").quarantined == 1
    two = export_records(twin, tmp_path / "two")
    assert (one.records, one.shards) == (1, two.shards)  # shards are equal where their hashes are


def test_a_scan_gives_every_record_once_question_by_question(
    open_client: OpenClient, trajectory: MakeTrajectory
) -> None:
    pool = open_client(cap=1000)
    made = [trajectory(f"q{i % 3}", [i]) for i in range(600)]  # more than a read takes
    pool.add(made)
    aside = [one.content_id for one in made[:30]]
    for one in made[:30]:
        pool.remove(one.prompt_id, [one.content_id], quarantine=True)
    held = list(pool.records())
    assert [(h.prompt_id, h.content_id.hex()) for h in held] == sorted((t.prompt_id, t.content_id) for t in made[30:])
    every = list(pool.records(quarantined=True))
    assert [(h.prompt_id, h.quarantined, h.content_id.hex()) for h in every] == sorted(
        (t.prompt_id, t.content_id in aside, t.content_id) for t in made
    )
    assert [h.content_id.hex() for h in find(pool, made[0].content_id)] == [made[0].content_id]
    assert find(pool, made[0].content_id)[0].quarantined
    assert len(find(pool, "q1")) == 200
    assert find(pool, "nobody") == find(pool, "ff" * 16) == []


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        ([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 3 / 4),  # 1234 2345 1234 2346
        ([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]], 1 / 3),
        ([[1, 2, 3, 4, 1, 2, 3, 4]], 4 / 5),  # 1234 2341 3412 4123 1234
        ([[1, 2], [3, 4], [1, 2, 3, 4]], 1.0),  # no piece spans two answers
        ([[2**31 - 1] * 5, [2**31 - 2] * 4], 2 / 3),
        ([[1, 2, 3]], None),
        ([[1], [2]], None),
    ],
)
def test_distinctness_is_the_share_of_different_pieces(answers: list[list[int]], share: float | None) -> None:
    assert distinctness([np.array(answer, np.int32) for answer in answers]) == share


def test_measured_quantiles_are_values_that_occur(open_client: OpenClient, trajectory: MakeTrajectory) -> None:
    pool = open_client()
    pool.add([trajectory(f"q{n}", [7] * n) for n in range(1, 11)])  # lengths 1 to 10, one answer each
    pool.add([trajectory("q9", [8] * 9), trajectory("q10", [7] * 9)])
    found = measure(pool, questions=0)
    assert (found.questions, found.trajectories) == (10, 12)
    # 1 2 3 4 5 6 7 8 9 9 9 10: a tenth of 12 is reached by the 2nd, half by the 6th, nine tenths by the 11th
    assert dict(found.length) == {0.0: 1, 0.1: 2, 0.25: 3, 0.5: 6, 0.75: 9, 0.9: 9, 1.0: 10}
    # q9: 6 pieces 7777 and 6 pieces 8888; q10: 7 + 6 pieces 7777
    assert found.distinctness[0.0] == pytest.approx(1 / 13)
    assert found.distinctness[1.0] == pytest.approx(2 / 12)
    some = measure(pool, questions=3)
    assert some.questions == 3
    assert measure(pool, questions=3) == some


def test_an_empty_pool_has_nothing_to_measure(open_client: OpenClient) -> None:
    found = measure(open_client(), questions=8)
    assert (found.questions, dict(found.length), dict(found.distinctness)) == (0, {}, {})


def test_a_pool_is_verified_with_the_columns_that_a_function_asks_for(
    open_client: OpenClient, trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "verifier"))
    pool = open_client(tokenizer=LETTERS.digest)
    pool.add([answer(trajectory, "q0", "x"), answer(trajectory, "q1", "x")])
    asked = {"q0": Asked("?", '{"level": 3}'), "q1": Asked("?", '{"level": 4}')}
    with configured_verifier(VerifierConfig(profile="python:verifier_functions:named")) as named:
        result = reverify(
            pool,
            {"q0": "1", "q1": "1"},
            LETTERS,
            named.grade_pairs,
            quarantine=False,
            report=lambda _: None,
            asked=asked,
        )
    assert dict(result.statuses) == {"correct": 1, "wrong": 1}
