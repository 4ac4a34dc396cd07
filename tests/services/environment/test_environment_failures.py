"""Episodes that fail: as crashed, timeout or out_of_memory, never as wrong, and their neighbours live on where they can."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import psutil
import pytest

from rlep.core.episodes import EpisodeStatus, Observation, ToolCall
from rlep.services.environment.local import LocalEnvironments
from tests.services.environment.conftest import Make

DRAW = [ToolCall("draw", "{}")]


def misbehave(how: str) -> list[ToolCall]:
    return [ToolCall("misbehave", json.dumps({"how": how}))]


async def worker_of(environments: LocalEnvironments, episode: str) -> int:
    """Return the id of the process that has an episode."""
    return int((await environments.act(episode, misbehave("worker"))).texts[0])


async def begun(environments: LocalEnvironments, *names: str) -> None:
    for name in names:
        assert (await environments.begin(name, "", seed=0)).status == "open"


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("loop", "timeout", "it took more than 0.5 s of CPU time"),
        ("sleep", "timeout", "it took more than 1 s"),
        ("hoard", "out_of_memory", "the memory of its process is full"),
        ("leave", "crashed", "SystemExit: enough"),
        ("mumble", "crashed", "SystemExit: ?"),
        ("unspeakable", "crashed", "Unspeakable: its text raises RuntimeError"),
    ],
)
async def test_a_call_that_can_be_stopped_ends_its_own_episode(
    make: Make, how: str, status: EpisodeStatus, reason: str
) -> None:
    cpu_seconds, deadline_s = 5 if how == "hoard" else 0.5, 1 if how == "sleep" else 60
    rough = await make("Rough", cpu_seconds=cpu_seconds, deadline_s=deadline_s, memory_mb=1024)
    await begun(rough, "bad", "good")
    worker = await worker_of(rough, "good")
    found = await rough.act("bad", [*misbehave(how), *DRAW])
    assert (found.status, found.reason.splitlines()[0], found.texts) == (status, reason, ())
    assert await rough.act("bad", DRAW) == found
    assert (await rough.act("good", DRAW)).status == "open"
    verdict = await rough.end("bad")
    assert verdict is not None
    assert (verdict.status, verdict.reason, verdict.score) == (status, found.reason, None)
    assert await rough.end("bad") is None
    assert await worker_of(rough, "good") == worker


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("stubborn", "timeout", "Ended: its process, with signal 24"),
        ("deaf", "timeout", "Ended: its process, with signal 24"),
        ("dead_asleep", "timeout", "it could not be interrupted after 1 s, and was killed"),
        ("die", "crashed", "Ended: its process, with exit code 0"),
    ],
)
async def test_a_call_that_only_a_kill_ends_takes_its_neighbours_along(
    make: Make, how: str, status: EpisodeStatus, reason: str
) -> None:
    rough = await make("Rough", cpu_seconds=0.5, deadline_s=1 if how == "dead_asleep" else 30)
    await begun(rough, "bad", "good")
    worker = await worker_of(rough, "bad")
    doing = asyncio.ensure_future(rough.act("bad", misbehave(how)))
    await asyncio.sleep(0)
    queued, fresh = await asyncio.gather(rough.act("good", DRAW), rough.begin("new", "", seed=0))
    assert await doing == Observation((), status, reason)
    assert queued.status == "crashed"
    assert "its process was lost" in queued.reason
    assert fresh.status == "open"  # it had not begun in the lost process
    assert await worker_of(rough, "new") != worker
    assert (await rough.act("good", DRAW)).status == "crashed"
    verdict = await rough.end("good")
    assert verdict is not None
    assert verdict.status == "crashed"


async def test_the_first_call_of_a_method_may_build_what_later_ones_use(make: Make) -> None:
    rough = await make("Rough", cpu_seconds=0.5, deadline_s=60)
    await begun(rough, "e")
    for _ in range(2):
        assert (await rough.act("e", misbehave("build"))).texts == ("built",)
    found = await rough.act("e", misbehave("loop"))
    assert (found.status, found.reason) == ("timeout", "it took more than 0.5 s of CPU time")


@pytest.mark.parametrize("how", ["connect", "spawn", "fork", "thread", "write"])
async def test_a_tool_gets_no_network_process_thread_or_file(make: Make, how: str) -> None:
    rough = await make("Rough")
    await begun(rough, "e")
    (said,) = (await rough.act("e", misbehave(how))).texts
    assert said.startswith("error: "), said


async def test_with_the_network_a_tool_gets_sockets_and_threads(make: Make) -> None:
    rough = await make("Rough", network=True)
    await begun(rough, "e")
    found = [(await rough.act("e", misbehave(how))).texts[0] for how in ("connect", "thread", "fork")]
    assert found[0].startswith("<socket.socket")
    assert found[1] == "None"
    assert found[2].startswith("error: ")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_process_killed_in_a_call_or_between_calls_is_replaced(make: Make, whole: bool) -> None:
    rough = await make("Rough", cpu_seconds=20)
    await begun(rough, "a")
    workers = [await worker_of(rough, "a")]
    pid = int((await rough.act("a", misbehave("host" if whole else "worker"))).texts[0])
    os.kill(pid, signal.SIGKILL)
    while rough._placed["a"].failed is None:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    idle = await rough.act("a", DRAW)
    assert (idle.status, "its process was lost" in idle.reason) == ("crashed", True)

    await begun(rough, "b", "c")
    pid = int((await rough.act("b", misbehave("host" if whole else "worker"))).texts[0])
    workers.append(await worker_of(rough, "b"))
    at_work = psutil.Process(workers[-1])
    doing = asyncio.ensure_future(rough.act("b", misbehave("loop")))
    used = at_work.cpu_times().user
    while at_work.cpu_times().user < used + 0.1:  # noqa: ASYNC110 - it is in the call
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    assert (await doing).status == "crashed"
    assert (await rough.act("c", DRAW)).status == "crashed"
    await begun(rough, "d")
    workers.append(await worker_of(rough, "d"))
    assert len({*workers}) == 3


@pytest.mark.parametrize(
    ("row", "action", "reason"),
    [
        ('{"reward": 1, "where": "step"}', "x", "RuntimeError: the board is broken\nTraceback"),
        ('{"reward": 1}', "bad", "TypeError: step returned 3 (int), neither text nor None"),
        ('{"reward": 1, "where": "reward"}', "", "ZeroDivisionError: no games\nTraceback"),
        ('{"reward": 1, "where": "close"}', "", "OSError: stuck\nTraceback"),
        ('{"reward": 2}', "", "OutOfRange: score 2 does not lie in [-1, 1]"),
        ('{"reward": "nan"}', "", "BadScore: score nan is not finite"),
        ('{"reward": "much"}', "", "BadScore: it returned 'much' (str)"),
        ('{"bonus": 1}', "x", "MissingColumn: reset asks for reward, which is no column of the row: it has bonus"),
    ],
)
async def test_what_an_environment_itself_does_wrong_crashes_its_episode(
    make: Make, row: str, action: str, reason: str
) -> None:
    game = await make("Rewarded")
    begun = await game.begin("e", row, seed=0)
    found = await game.act("e", action) if action else begun
    verdict = await game.end("e")
    assert verdict is not None
    assert (found.status, verdict.status) == ("crashed" if action else "open", "crashed")
    assert verdict.reason.startswith(reason)
    assert not action or found.reason == verdict.reason


async def test_every_episode_is_closed_once_however_it_ends(make: Make) -> None:
    game = await make("Rewarded")

    async def closed() -> str:
        await game.begin("asks", '{"reward": 1}', seed=0)
        (said,) = (await game.act("asks", "closed")).texts
        return said

    assert await closed() == "0"
    for name, where in (("a", ""), ("b", "step"), ("c", "reward"), ("d", "close")):
        await game.begin(name, json.dumps({"reward": 1, "where": where}), seed=0)
    assert (await game.act("b", "x")).status == "crashed"
    assert await closed() == "2"  # of b, and of the one that asked before, which was forgotten
    for name in "abcd":
        await game.end(name)
    assert await closed() == "6"


async def test_a_call_that_takes_the_clocks_signals_does_not_stop_the_next_ones_clock(make: Make) -> None:
    rough = await make("Rough", cpu_seconds=0.5)
    await begun(rough, "a", "b")
    assert (await rough.act("a", misbehave("disarm"))).texts == ("None",)
    assert (await rough.act("a", misbehave("loop"))).reason == "it took more than 0.5 s of CPU time"
    assert (await rough.act("b", DRAW)).status == "open"


async def test_episodes_of_a_process_have_hundreds_of_files(make: Make) -> None:
    rough = await make("Rough")
    names = [str(number) for number in range(4)]
    await begun(rough, *names)
    assert [(await rough.act(name, misbehave("open_files"))).texts for name in names] == [("200",)] * 4


async def test_what_a_reward_extracts_can_be_stored(make: Make) -> None:
    game = await make("Rewarded")
    await game.begin("e", json.dumps({"reward": {"score": 0.5, "pred": "\ud800" * 5000}}), seed=0)
    verdict = await game.end("e")
    assert verdict is not None
    assert (verdict.status, verdict.extracted) == ("wrong", "?" * 4000)


async def test_an_exception_in_reset_is_shown_with_the_users_own_lines(make: Make) -> None:
    rough = await make("Rough")
    found = await rough.begin("e", '{"where": "reset"}', seed=0)
    assert found.status == "crashed"
    first, *_, last = found.reason.splitlines()
    assert first == "KeyError: 'no such level'"
    assert last.strip() == 'raise KeyError("no such level")'
    assert "site-packages" not in found.reason


async def test_closing_leaves_no_process(make: Make) -> None:
    before = set(psutil.Process().children(recursive=True))
    rough = await make("Rough", workers=2)
    await begun(rough, "a", "b")
    doing = asyncio.ensure_future(rough.act("a", misbehave("sleep")))
    await asyncio.sleep(0)
    rough.close()
    with pytest.raises(asyncio.CancelledError):
        await doing
    psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)
    assert set(psutil.Process().children(recursive=True)) <= before
