"""Every check in its order: configuration → data → machine → fit, and on request the parts, tried here.

``rlep check`` lists what they find. A run makes the same checks before any actor starts: an error of one ends it, and
what only may be wrong, such as little free memory, is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rlep.check.data_checks import (
    environment,
    evaluation_data,
    input_notes,
    model,
    options,
    teacher,
    training_data,
    verifier,
)
from rlep.check.finding import CheckSkipped, Finding
from rlep.check.fit_checks import FIT
from rlep.check.inputs import Inputs, Look, Subject
from rlep.check.machine import MACHINE, cluster
from rlep.check.pool_checks import pool
from rlep.check.pool_records import pool_records
from rlep.config.schema import Config
from rlep.core.errors import RlepError
from rlep.core.progress import StartPhase
from rlep.hub.resolve import resolve

DATA: tuple[Look, ...] = (options, model, teacher, environment, training_data, evaluation_data, verifier)
BEFORE_ACTORS: tuple[Look, ...] = (pool, *MACHINE, *FIT)


def resolved(config: Config, note: Callable[[str], None], phase: StartPhase) -> Config:
    """Return ``config`` pinned, with all that it names here; as it is where a name stands for nothing: the checks say why."""
    with suppress(RlepError):
        return resolve(config, note, phase=phase, learns=True)
    return config


def findings(config: Config) -> Iterator[Finding]:
    """Make every check that starts nothing, for a run that trains; an error is a finding like others."""
    subject = Subject(config)
    for look in (*DATA, pool, pool_records, *MACHINE, cluster, *FIT):
        what = look.__name__.replace("_", " ")
        try:
            yield from look(subject)
        except CheckSkipped as reason:
            yield Finding(what, "skipped", str(reason))
        except RlepError as error:
            yield Finding(what, "wrong", str(error))
        if look is evaluation_data:
            yield from _notes(subject)


def check_inputs(subject: Subject, note: Callable[[str], None]) -> Inputs:
    """Check configuration and data for a command; return what it reads. Raises the error of the first that is wrong."""
    _make(subject, DATA, note)
    for line in input_notes(subject):
        note(line)
    return subject.inputs()


def check_start(subject: Subject, note: Callable[[str], None]) -> None:
    """Check pool, machine and fit for a command whose actors are about to start. Raises the error of the first that is wrong."""
    _make(subject, BEFORE_ACTORS, note)


def _make(subject: Subject, looks: Sequence[Look], note: Callable[[str], None]) -> None:
    for look in looks:
        try:
            for finding in look(subject):
                if finding.level == "wrong":
                    remedy = f" ({finding.remedy})" if finding.remedy else ""
                    note(f"check: {finding.what}: {finding.detail}{remedy}")
        except CheckSkipped:
            continue


def _notes(subject: Subject) -> Iterator[Finding]:
    try:
        for line in input_notes(subject):
            yield Finding("questions", "ok", line)
    except RlepError:
        return  # their own checks have said why they cannot be read
