"""A backup gives the same pool again, and a damaged one gives nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlep.core.errors import PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.backup import backup, restore
from rlep.services.pool.pool import Pool

MakeTrajectory = Callable[..., Trajectory]
OpenPool = Callable[..., Pool]


def test_a_restored_pool_is_the_same_in_every_record_mark_and_draw(
    open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_pool("origin", precision="float32")
    batch = [trajectory(f"q{i % 5}", [i]) for i in range(50)]
    pool.add(batch)
    bad, pinned, removed = batch[0], batch[1], batch[2]
    pool.remove("q0", [bad.content_id], quarantine=True)
    pool.pin("q1", [pinned.content_id])
    pool.remove("q2", [removed.content_id])
    assert backup(pool, tmp_path / "pool.rlep") == 49  # 50 - 1 removed; the quarantined one is kept
    twin = open_pool("twin")  # float16 by default: records are copied, not written anew
    report = restore(twin, tmp_path / "pool.rlep")
    assert (report.inserted, report.duplicates, report.refused, report.quarantined) == (48, 0, (), 1)
    again = restore(twin, tmp_path / "pool.rlep")
    assert (again.inserted, again.duplicates, again.refused, again.quarantined) == (0, 48, (), 0)
    assert twin.digest() == pool.digest()
    assert twin.stats() == pool.stats()
    prompts = pool.prompt_ids()
    one, two = (p.sample(prompts, 3, seed=1, step=2) for p in (pool, twin))
    assert one.ids == two.ids
    assert one.details == two.details
    assert one.logprobs.tobytes() == two.logprobs.tobytes()
    assert twin.add([bad]).refused[0][1].startswith("quarantined")
    assert twin.add([removed]).inserted == 1
    assert twin.store.everything("q1")[2] == {bytes.fromhex(pinned.content_id)}


def test_quarantine_holds_in_a_pool_that_has_the_record(
    open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool, target = open_pool("strict"), open_pool("lax")
    bad = trajectory("q0", [1])
    for one in (pool, target):
        one.add([bad, trajectory("q0", [2])])
    pool.remove("q0", [bad.content_id], quarantine=True)
    backup(pool, tmp_path / "pool.rlep")
    restore(target, tmp_path / "pool.rlep")
    assert bad.content_id not in target.content_ids("q0")
    assert target.add([bad]).inserted == 0


def test_a_sealed_pool_is_sealed_again_with_the_same_digest(
    open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_pool("sealed-origin")
    pool.add([trajectory("q0", [i]) for i in range(4)])
    digest = pool.seal()
    backup(pool, tmp_path / "pool.rlep")
    copy = open_pool("sealed-copy")
    assert restore(copy, tmp_path / "pool.rlep").sealed == digest == copy.sealed
    other = open_pool("other-content")
    other.add([trajectory("q9", [1])])
    with pytest.raises(PoolError, match=f"sealed with digest {digest}; pool other-content now has"):
        restore(other, tmp_path / "pool.rlep")


def test_a_cut_or_damaged_backup_restores_nothing(
    open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool, target = open_pool("whole"), open_pool("target")
    pool.add([trajectory("q0", [i]) for i in range(4)])
    path = tmp_path / "pool.rlep"
    backup(pool, path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(PoolError, match=r"ends too early|no backup"):
            restore(target, path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(PoolError, match=r"ends too early|no backup|is damaged"):
            restore(target, path)
    assert target.stats().trajectories == 0


def test_a_backup_of_another_tokenizer_is_refused(
    open_pool: OpenPool, trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    pool = open_pool("tok-a")
    pool.add([trajectory("q0", [1])])
    backup(pool, tmp_path / "pool.rlep")
    with pytest.raises(PoolError, match="tokenizer tokenizer-digest; the pool's is b"):
        restore(open_pool("tok-b", tokenizer="b"), tmp_path / "pool.rlep")
