"""What writers were told about each of their calls, and whether a pool agrees with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlep import PoolClient
from rlep.core.types import AddReport
from rlep.services.pool.maintenance.check_records import check_records
from tests.services.pool.pool_writer import BATCH, batch_of


@dataclass(slots=True)
class Call:
    """One batch of a writer."""

    serial: int
    begun: int = 0
    """How often: again by the writer that follows one that was killed."""
    report: tuple[int, int, int] | None = None
    """Inserted, duplicates, refused; None where none was noted."""


class History:
    """A file of ``begin SERIAL`` and ``end SERIAL INSERTED DUPLICATES REFUSED``; lines that were written stay written."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def begin(self, serial: int) -> None:
        self._note(f"begin {serial}\n")

    def end(self, serial: int, report: AddReport) -> None:
        self._note(f"end {serial} {report.inserted} {report.duplicates} {len(report.refused)}\n")

    def calls(self) -> list[Call]:
        """All calls, in the order of their serial numbers."""
        calls: dict[int, Call] = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            what, serial, *numbers = line.split()
            call = calls.setdefault(int(serial), Call(int(serial)))
            if what == "begin":
                call.begun += 1
            else:
                assert call.report is None, f"{self.file.name}: {line}: told twice"
                inserted, duplicates, refused = map(int, numbers)
                call.report = (inserted, duplicates, refused)
        return list(calls.values())

    def answered(self) -> int:
        """How many calls have an answer."""
        return sum(call.report is not None for call in self.calls())

    def following(self, size: int) -> int:
        """The first serial number without an answer."""
        return self.answered() * size

    def _note(self, line: str) -> None:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def check(pool: PoolClient, histories: Sequence[tuple[int, History]]) -> tuple[int, list[Call]]:
    """Nothing acknowledged is lost, nothing is there twice, or unasked for; counters are what a scan counts.

    ``histories``: with the number of their writer. Returns how many records the pool holds, and all calls.
    """
    wanted, begun, calls = set[str](), set[str](), list[Call]()
    for number, history in histories:
        for call in history.calls():
            ids = {trajectory.content_id for trajectory in batch_of(number, call.serial)}
            begun |= ids
            if call.report is not None:
                inserted, duplicates, refused = call.report
                assert (inserted + duplicates, refused) == (BATCH, 0), (number, call)
                wanted |= ids
            calls.append(call)
    found = [content_id for prompt_id in pool.prompt_ids() for content_id in pool.content_ids(prompt_id)]
    assert len(found) == len(set(found))
    assert wanted <= set(found) <= begun
    checked, stats = check_records(pool, repair=False), pool.stats()
    seen = (checked.records, checked.counted, checked.damaged)
    assert seen == (len(found), len(found), 0), f"{seen} records, counted, damaged; {len(found)} listed"
    assert stats.trajectories == len(found) == sum(stats.by_policy.values()) == sum(stats.by_verifier.values()), stats
    return len(found), calls
