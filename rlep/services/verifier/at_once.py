"""Reward functions that use the network: several responses at once, each with a deadline; a server that is away is asked again.

A function says that its server is away by the error of the client that it uses: ``ConnectionError`` and what httpx, requests,
aiohttp or openai raise in its place, or an HTTP status of 408, 429 or 500 and more. A certificate that cannot be verified is
no such error: it stays as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.judgement import Judge, Judgement
from rlep.services.worker.failure import failure_of
from rlep.services.worker.jail import Limits

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 15.0
MOST_THREADS = 512
"""Made as they are needed: a function that waits for ever keeps its thread until the process is replaced."""
_AWAY = {"ConnectionError", "ConnectTimeout", "TransportError", "ClientConnectionError", "URLError", "gaierror"}
"""Names of the classes of errors by which clients say that they did not reach a server."""
_SLOW = {"TimeoutError", "TimeoutException", "Timeout"}
"""Names of those by which they say that an answer takes too long."""
_TRY_AGAIN = (408, 429)

Trouble = Literal["away", "failing", "slow", ""]


class ServerAway(Exception):
    """A response has no verdict, because the server behind the function could not be reached until its deadline."""


async def grade_all(
    judge: Judge, limits: Limits, jobs: Sequence[GradingJob], at_once: int, answer: Callable[[list[Any]], None]
) -> bool:
    """Answer all jobs in their order, ``at_once`` of them in work; True if a thread may still be waiting for its server.

    Raises ServerAway.
    """
    places = asyncio.Semaphore(at_once)
    late = False
    served = 0

    async def grade(job: GradingJob) -> list[Any]:
        nonlocal served
        async with places:
            started = time.perf_counter()
            found = await judged(judge, limits.deadline_s, job, lambda: served)
            served += found.status != "timeout"
            return found.reply(time.perf_counter() - started)

    # Alone, each is answered before the next begins, so that it is known which of them ended the process.
    tasks = [asyncio.create_task(grade(job)) for job in jobs if at_once > 1]
    try:
        for waiting in tasks or map(grade, jobs):
            reply = await waiting
            late |= reply[0] == "timeout"
            answer(reply)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return late


async def judged(judge: Judge, deadline_s: float, job: GradingJob, served: Callable[[], int]) -> Judgement:
    """The judgement within ``deadline_s``, else ``timeout``. Raises ServerAway.

    ``served``: counts the others that got theirs. A server that fails at this response alone, by an HTTP error 500, is not away:
    a continued run would meet the same response again.
    """
    last: Exception | None = None
    pause, before = FIRST_PAUSE_S, served()
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    return await judge.judge(job)
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 - the outermost frame of a job, whatever the user's function raised
                    if not trouble_of(error):
                        return Judgement("crashed", None, failure_of(error, "verifier"))
                    last = error
                await asyncio.sleep(max(pause, _pause_asked(last)))
                pause = min(2 * pause, LONGEST_PAUSE_S)
    except TimeoutError:
        trouble = trouble_of(last) if last is not None else ""
        if trouble == "away" or (trouble == "failing" and served() == before):
            raise ServerAway(f"{type(last).__name__}: {last}") from last
        said = f", the last time {type(last).__name__}: {last}" if last is not None else ""
        return Judgement("timeout", None, f"Timeout: no verdict within {deadline_s:g} s{said}")


def trouble_of(error: BaseException) -> Trouble:
    """Classify what a function raised: its server is ``away``, ``failing`` or ``slow``; empty: the function failed."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ""
    for cause in _causes(error):
        if (status := _status_of(cause)) is not None:
            return "failing" if status == 500 else "away" if status in _TRY_AGAIN or status > 500 else ""
        names = {kind.__name__ for kind in type(cause).__mro__}
        if names & _SLOW and "ConnectTimeout" not in names:
            return "slow"
        if names & _AWAY:
            return "away"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _pause_asked(error: BaseException) -> float:
    """The seconds of a ``Retry-After`` in an error; 0 where there is none, or a date."""
    for cause in _causes(error):
        headers = getattr(getattr(cause, "response", cause), "headers", None)
        text = headers.get("Retry-After", "") if headers is not None else ""
        if text.isdecimal():
            return float(text)
    return 0.0


def _status_of(error: BaseException) -> int | None:
    """The HTTP status in an error: httpx, requests and openai have it in ``response``, aiohttp and urllib in the error."""
    found = getattr(getattr(error, "response", None), "status_code", None)
    for name in ("status", "code"):
        found = getattr(error, name, None) if found is None else found
    return found if isinstance(found, int) else None
