"""A lifeline ends the process that received it when that process's parent ends, however it ended."""

from __future__ import annotations

import copy
import multiprocessing
import signal
from multiprocessing.connection import Connection

import psutil
import pytest

from rlep.engines.sampler.lifeline import Lifeline


def rest(_lifeline: Lifeline) -> None:
    multiprocessing.Event().wait()


def own_a_process(pids: Connection) -> None:
    child = multiprocessing.get_context("spawn").Process(target=rest, args=(Lifeline(),))
    child.start()
    pids.send(child.pid)
    multiprocessing.Event().wait()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent(ending: signal.Signals) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    owner = context.Process(target=own_a_process, args=(theirs,))
    owner.start()
    child = psutil.Process(ours.recv())
    assert child.is_running()
    psutil.Process(owner.pid).send_signal(ending)
    owner.join()
    child.wait(timeout=200)  # it may not have received its lifeline yet when its parent died


def test_a_copy_in_the_same_process_watches_nobody() -> None:
    assert isinstance(copy.deepcopy(Lifeline()), Lifeline)
    assert Lifeline().compute_hash() == ""
