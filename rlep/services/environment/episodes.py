"""Episodes in their process: each has its own object of the environment's class, and calls of it in turn."""

from __future__ import annotations

import gc
import json
import random
from asyncio import AbstractEventLoop, all_tasks, wait
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any

import numpy as np

from rlep.core.printable import storable
from rlep.core.seeds import seed_for
from rlep.services.environment.arguments import BadCall
from rlep.services.environment.contract import Contract
from rlep.services.environment.overtime import CallClock, Overtime
from rlep.services.environment.reply import UNKNOWN, CallReply
from rlep.services.verifier.judgement import judgement_of
from rlep.services.worker.failure import MAX_REASON, failure_of

_NUMPY_SEEDS = 1 << 32
_HEED_S = 1.0
"""Longest wait for what an interrupted ``async`` method left to heed that it is cancelled."""


class MissingColumn(LookupError):
    """``reset`` asks for a column that the row does not have."""


@dataclass
class _OpenEpisode:
    environment: Any
    seed: int
    calls: int = 0


class Episodes:
    """The episodes of one process. No method raises for what an environment does; MemoryError passes."""

    def __init__(self, contract: Contract, clock: CallClock, loop: AbstractEventLoop | None, longest: int) -> None:
        """``loop``: of a class that has ``async`` methods. ``longest``: characters of a text that are kept."""
        self._contract, self._clock, self._loop, self._longest = contract, clock, loop, longest
        self._open: dict[str, _OpenEpisode] = {}

    def __len__(self) -> int:
        """Count the open episodes."""
        return len(self._open)

    def begin(self, name: str, columns: str, seed: int) -> CallReply:
        """Make an object and reset it with a row, a JSON object."""
        self._open[name] = _OpenEpisode(None, seed)
        return self._guarded(name, "reset", partial(self._begin, self._open[name], columns))

    def call(self, name: str, tool: str, arguments: str) -> CallReply:
        """Call a tool; whatever it raises is text for the policy."""
        method = tool if tool in self._contract.tools else ""
        return self._guarded(name, method, lambda: self._call(self._open[name].environment, tool, arguments))

    def step(self, name: str, text: str) -> CallReply:
        """Answer a turn."""
        return self._guarded(name, "step", lambda: self._step(self._open[name].environment, text))

    def end(self, name: str) -> CallReply:
        """Forget an episode; its reward is asked for first, where the class has one."""
        reply = self._guarded(name, "get_reward", lambda: self._end(self._open[name]))
        self._open.pop(name, None)
        return reply

    def drop(self, name: str) -> CallReply:
        """Forget an episode without its reward."""
        episode = self._open.pop(name, None)
        if episode is None:
            return CallReply(UNKNOWN)
        self._release(episode)
        return CallReply("ended")

    def _begin(self, episode: _OpenEpisode, columns: str) -> CallReply:
        row: dict[str, Any] = json.loads(columns) if columns else {}
        wanted = self._contract.columns
        if unknown := self._contract.needed - row.keys():
            raise MissingColumn(
                f"reset asks for {', '.join(sorted(unknown))}, which is no column of the row: it has {', '.join(row) or 'none'}"
            )
        episode.environment = self._contract.factory()
        given = row if wanted is None else {column: value for column, value in row.items() if column in wanted}
        return CallReply("open", self._text_or_none("reset", self._run(episode.environment.reset, **given)))

    def _call(self, environment: Any, tool: str, arguments: str) -> CallReply:
        try:
            takes = self._contract.tools.get(tool)
            if takes is None:
                raise BadCall(f"there is no tool {tool:.80}; there are {', '.join(self._contract.tools) or 'none'}")
            found = self._run(getattr(environment, tool), **takes.read(arguments))
            text = _text_of(found)
            return CallReply("open", self._cut(str(found) if text is None else text))
        except (MemoryError, Overtime):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the policy
            said = " ".join(str(error).split()) or type(error).__name__
            return CallReply("open", self._cut(f"error: {said}"[:MAX_REASON]))

    def _step(self, environment: Any, text: str) -> CallReply:
        found = self._text_or_none("step", self._run(environment.step, text))
        return CallReply("ended" if found is None else "open", found)

    def _end(self, episode: _OpenEpisode) -> CallReply:
        reward = None
        if self._contract.has_reward:
            found = self._run(episode.environment.get_reward)
            reward = judgement_of(found, None, *self._contract.score_range).reply(0.0)
        self._close(episode)
        return CallReply("ended", None, "", reward)

    def _close(self, episode: _OpenEpisode) -> None:
        """Close an episode's object, once."""
        environment, episode.environment = episode.environment, None
        if environment is not None and self._contract.has_close:
            self._run(environment.close)

    def _release(self, episode: _OpenEpisode) -> None:
        """Close the object of an episode that has failed or that nobody awaits: what that raises is told to nobody."""
        try:
            with self._clock.of("close"):
                self._close(episode)
        except Overtime:
            self._clock.stop()
            self._settle()
        except BaseException:  # noqa: BLE001, S110 - the failure before it is the one that is told
            pass

    def _guarded(self, name: str, method: str, call: Callable[[], CallReply]) -> CallReply:
        """Run a part of an episode under the clock, with its own random numbers; one that fails is forgotten."""
        episode = self._open.get(name)
        if episode is None:
            return CallReply(UNKNOWN)
        self._seed(episode)
        try:
            with self._clock.of(method):
                return call()
        except Overtime:
            self._clock.stop()
            failed = CallReply("timeout", None, self._clock.said)
            self._settle()
        except MemoryError as error:
            failed = CallReply("out_of_memory", None, str(error) or "the memory of its process is full")
        except BaseException as error:  # noqa: BLE001 - whatever an environment raises ends its episode alone
            failed = CallReply("crashed", None, failure_of(error, "environment"))
        self._release(episode)
        del self._open[name], episode, call
        if failed.status == "out_of_memory":
            gc.collect()
        return failed

    def _seed(self, episode: _OpenEpisode) -> None:
        """Seed what is drawn in a call by the episode and the call's number: neighbours draw in between."""
        seed = seed_for(episode.seed, "call", episode.calls)
        episode.calls += 1
        random.seed(seed)
        np.random.seed(seed % _NUMPY_SEEDS)

    def _run(self, method: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        found = method(*given, **named)
        return self._loop.run_until_complete(found) if self._loop is not None and isawaitable(found) else found

    def _settle(self) -> None:
        """Cancel what an interrupted ``async`` method left in the loop; what does not heed it stays there."""
        if self._loop is None or not (left := all_tasks(self._loop)):
            return
        for task in left:
            task.cancel()
        with suppress(Overtime), self._clock.of(""):
            self._loop.run_until_complete(wait(left, timeout=_HEED_S))
        self._clock.stop()

    def _text_or_none(self, method: str, found: Any) -> str | None:
        text = _text_of(found)
        if found is not None and text is None:
            raise TypeError(f"{method} returned {found!r:.60} ({type(found).__name__}), neither text nor None")
        return text if text is None else self._cut(text)

    def _cut(self, text: str) -> str:
        """Keep the beginning of a long text, and say so; what is no Unicode is replaced."""
        if len(text) > self._longest:
            text = f"{text[: self._longest]}\n[cut: {self._longest} of {len(text)} characters]"
        return storable(text)


def _text_of(found: Any) -> str | None:
    """A text as it is, and the texts of a list of a message's parts; of anything else None."""
    if isinstance(found, str):
        return found
    parts = found if isinstance(found, list) else []
    texts = [str(part["text"]) for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(texts) if texts and len(texts) == len(parts) else None
