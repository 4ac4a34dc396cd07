"""Replay for any trainer: draws from an experience pool on a server, and keeps the trainer's own successes there.

    step k       draw(k, prompts) ─ generate ─ reward ─ keep(k, rows)

The pool is all that is remembered. A stored response is born in the step whose policy generated it: its provenance names run
and step. Step k sees of this run's responses those born before k (``algorithms.live_draws.seen``), so a draw is a pure
function of the pool's content, seed, step and prompt id. Several processes of a trainer draw the same without talking, as long
as none begins step k + 1 before all have kept step k, and none draws or keeps before the main process has begun. A run that
goes on at step r removes what was born in r or later.

numpy and the pool's client are all that this needs.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from rlep.algorithms.live_draws import Births, draw_ids, seen
from rlep.algorithms.mixing import fitting
from rlep.algorithms.selection import Candidate, select
from rlep.config.replay import ReplayConfig
from rlep.core.episodes import played_in
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.plural import counted
from rlep.core.types import ALL, BoolArray, Float32Array, Int32Array, Provenance, Sampling, Trajectory, Verdict
from rlep.integrations.counts import Counts
from rlep.integrations.rewards import REWARD, check_finite, is_finite, stored_reward
from rlep.integrations.rule import replay_method
from rlep.methods.replay_method import ReplayMethod
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.storage.scan import trajectory_of
from rlep.services.pool.values import OTHERS, PoolStats

PAUSE_S = 60.0
"""After a call that a server did not answer: the time until the next one, and between two lines about it."""
LOOKED_AT = 64
"""Prompts of which four responses each are looked at before the first draw: where none is of the run's environment and template,
it does not begin."""
_log = logging.getLogger(__name__)
T = TypeVar("T")
Replays = dict[str, tuple[Trajectory, ...]]
"""Prompt id → its replays."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that draws and fills, as its records name it."""

    run: str
    """Its name, the same in all processes and when it is resumed; of another run in the same pool another one."""
    tokenizer_digest: str
    template_digest: str = ""
    """Of what makes a prompt of a question (``Tokenizer.template_digest``); empty: not known."""
    environment_digest: str = ""
    """Names the environment or the tools that responses are episodes of; empty: of none."""
    vocabulary: int | None = None
    """Rows of the model's embedding."""
    max_tokens: int | None = None
    """Longest response in tokens."""
    limit: str = "max_tokens"
    group: str = "size"
    """The trainer's own names of that length, and of the rows of a group."""
    sampling: Sampling = field(default_factory=Sampling)
    logprobs_mode: str = "processed"
    logprobs_dtype: str = "float32"
    verifier: str = "reward"
    """Name of the reward function."""
    main: bool = True
    """False in all processes of a trainer but one, which holds the pool's lease and rewinds.

    The others are not fenced: they go step by step with the main one, so that of an incarnation that was replaced they can still
    add no more than the step they are in.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One response that the trainer generated."""

    prompt_id: str
    tokens: Int32Array
    """``[T]``, with the token that ended it."""
    reward: float | None
    """None: it could not be rewarded."""
    finished: bool
    """It ended by itself, not at the token limit."""
    logprobs: Float32Array | None = None
    """Of the tokens under the policy that generated them, ``[T]``; None where they are not known."""
    sampled: BoolArray | None = None
    """``[T]``; False for tokens that tools or an environment wrote, whose log-probs are 0. None: all are the policy's."""


class _Held(NamedTuple):
    """All that the pool has of one prompt, as columns."""

    sample: Sample
    prompt_id: str
    places: Mapping[str, int]
    """Content id → its number in the sample."""

    def member(self, content_id: str, births: Mapping[str, int]) -> Trajectory:
        """One response, with its birth where it is the run's own."""
        member = self.sample.member(self.places[content_id], self.prompt_id)
        return replace(member, birth=births.get(content_id, -1))


class Replayer:
    """Draws replays for a trainer, and keeps its successes. One object in each of its processes."""

    def __init__(
        self,
        pool: PoolClient,
        origin: Origin,
        rule: ReplayConfig,
        *,
        seed: int = 0,
        steps: int = 0,
        success: float = 1.0,
        away: Literal["continue", "stop"] = "continue",
        restart: bool = False,
    ) -> None:
        """Nothing is asked of the pool before the first ``draw``.

        Args:
            pool: a client with the pool's name; its ``deadline`` is the longest wait of a call.
            origin: the run.
            rule: see ``replay_rule``.
            seed: of the draws.
            steps: of the run; a linear schedule ends there. 0: not known.
            success: least reward of a success.
            away: go on without replays while the server does not answer, or raise ``DeadlineExceeded``.
            restart: at step 0 remove what an earlier start of this run left in the pool, instead of refusing it.
        """
        if not pool.name:
            raise ConfigError('PoolClient(…, pool="") names no pool: give its name, e.g. pool="countdown"')
        if not origin.run or "\n" in origin.run:
            raise ConfigError(f"run = {origin.run!r}: a run needs a name of one line, which its records carry")
        if rule.schedule == "linear" and steps < 1:
            raise ConfigError(f"steps = {steps}: a linear replay schedule needs its length in steps")
        if steps > 0:
            rule.check_schedule(steps)
        self._pool, self._origin, self._rule, self._steps = pool, origin, rule, steps
        self._seed, self._success, self._away, self._restart = seed, check_finite("success", success), away, restart
        self._method = replay_method(rule, seed)
        self._first, self._step, self._again = 0, -1, 0.0
        self.begun = False
        """Tell whether the pool was opened, and by the main process rewound. Set to False, it is asked again at the next draw."""
        self._counts = Counts()
        self._births: dict[str, int] = {}
        self._own: dict[str, Births] = {}
        """Of the prompts last drawn for: the run's own responses."""
        self._trims = rule.source != "offline"
        self._told: set[str] = set()
        """Lines that the log has."""

    def take_counts(self) -> Counts:
        """Return the counts since the last time."""
        counts, self._counts = self._counts, Counts()
        return counts

    def draw(self, step: int, prompts: Sequence[str]) -> Replays:
        """Draw at most M stored responses of each prompt, given by their ids; a prompt that has none is left out.

        Raises:
            PoolError: the pool is of another tokenizer or template, is written by another run that is alive, or holds what an
                earlier start of this run left.
            DeadlineExceeded: the server does not answer, and ``away`` is ``stop``.
        """
        count, prompt_ids = self._rule.count_at(step, self._steps), list(dict.fromkeys(prompts))
        if self._step < 0 or step < self._step:  # a trainer may be trained again, or resume in the same process
            self._first, self.begun = step, False
            self._births.clear()
        self._step = step
        self._own.clear()
        if not self.begun:
            self.begun = self._asked(self._begin, otherwise=False)
        wanted = list(self._method.with_replays(step, prompt_ids)) if count else []
        if not wanted or not self.begun:
            return {}
        drawn = self._asked(lambda: self._drawn(step, wanted, count), otherwise=Replays())
        self._count(step, drawn, wanted)
        return drawn

    def fill(self, step: int, prompts: Sequence[str], size: int, first: int = 0) -> list[Trajectory | None]:
        """Draw as ``draw`` does for rows that stand in groups: the last places of a group are its replays.

        Args:
            step: of the trainer.
            prompts: the prompt id of each row, ``[R]``, those of a group side by side.
            size: rows of a group.
            first: number of the first row among those of all processes.

        Returns:
            ``[R]``: the replay of a row; None where the current policy generates, in every group once at least.

        Raises:
            ConfigError: a group has no place for a fresh response, or rows of two prompts; the rule needs rewards.
        """
        if self.decides_late:
            raise ConfigError(
                f'replay.method = "{self._rule.method}", or replay.only_below: rewards would say who gets replays, and there are '
                "none yet when the places of a group are filled; choose another method, and leave only_below out"
            )
        if size <= self._rule.count:
            raise ConfigError(
                f"{self._origin.group} = {size} with count = {self._rule.count}: a group needs a fresh response; make it "
                f"{self._rule.count + 1} or more, e.g. G + {self._rule.count} for the paper's addition to G"
            )
        for row in range(1, len(prompts)):
            if (first + row) % size and prompts[row] != prompts[row - 1]:
                raise ConfigError(
                    f"rows {row - 1} and {row} are of one group of {self._origin.group} = {size} and of two prompts: a step's "
                    "rows must be whole groups, side by side, and what an environment's reset adds must be the same for a group"
                )
        drawn, places = self.draw(step, prompts), [(first + row) % size - size for row in range(len(prompts))]
        return [
            drawn[name][place] if -place <= len(drawn.get(name, ())) else None
            for name, place in zip(prompts, places, strict=True)
        ]

    def accepts(self, rows: Sequence[Row]) -> bool:
        """Decide by the method and ``replay.only_below`` whether the replays of a prompt join its fresh responses."""
        fresh, below = [self._trajectory(0, row) for row in rows], self._rule.only_below
        share = sum(member.correct for member in fresh) / max(1, len(fresh))
        return (below is None or share < below) and self._method.accepts(fresh)

    @property
    def decides_late(self) -> bool:
        """Tell whether ``accepts`` has to be asked: a trainer that has no rewards when it draws cannot follow."""
        return self._rule.only_below is not None or type(self._method).accepts is not ReplayMethod.accepts

    def is_success(self, row: Row) -> bool:
        """The one rule: a whole response with a reward of ``success`` or more."""
        whole = row.finished and len(row.tokens) > 0
        return whole and row.reward is not None and is_finite(row.reward) and row.reward >= self._success

    def keep(self, step: int, rows: Iterable[Row]) -> None:
        """Store the successes among a step's fresh responses, born in this step. Raises as ``draw`` does."""
        rows = [*rows]
        odd = [row.reward for row in rows if row.reward is not None and not is_finite(row.reward)]
        if odd:
            self._warn_once(
                "%s gave %d of %d responses of step %d a reward that is not finite (%s): such responses are not stored",
                *(self._origin.verifier, len(odd), len(rows), step, odd[0]),
            )
        born = [self._trajectory(step, row) for row in rows if self.is_success(row)]
        if not born or self._rule.source == "offline":
            return
        report = self._asked(lambda: self._pool.add(born), otherwise=None) if self.begun else None
        counts = self._counts
        if report is None:
            counts.lost += len(born)
            return
        counts.stored, counts.duplicates = counts.stored + report.inserted, counts.duplicates + report.duplicates
        counts.refused += len(report.refused)
        if report.refused:
            _log.warning("pool %s does not take response %s: %s", self._pool.name, *report.refused[0])

    def trim(self, oldest: int) -> None:
        """Remove what no step from ``oldest`` on sees of the prompts last drawn for.

        That is what ``replay.per_question`` newer responses have pushed out, or what ``replay.max_age`` has ended. A run that
        goes on at a step before ``oldest`` draws from fewer responses than the first time. It is done once a prompt has
        ``replay.per_question`` of them, in any process. A token that may not remove leaves all in the pool.

        Args:
            oldest: the step of the oldest checkpoint at which the run may go on, or the present step.
        """
        rule = self._rule
        for prompt_id, births in self._own.items():
            past = {content_id: birth for content_id, birth in births.items() if birth < oldest}
            gone = past.keys() - seen(past, oldest, per_question=rule.per_question, max_age=rule.max_age)
            if self._trims and len(gone) >= rule.per_question:
                self._asked(partial(self._remove, prompt_id, sorted(gone)), otherwise=None)

    def _remove(self, prompt_id: str, content_ids: Sequence[str]) -> None:
        try:
            self._counts.removed += self._pool.remove(prompt_id, content_ids)
        except PoolError as error:
            self._trims = False
            _log.warning("what no later step sees stays in the pool: %s", error)
            return
        for content_id in content_ids:
            self._births.pop(content_id, None)

    def _begin(self) -> bool:
        """Open the pool, see that it is of this model, and remove what a lost future left."""
        pool, origin, writes = self._pool, self._origin, self._rule.source != "offline"
        new = writes and pool.name not in pool.names()
        holder = f"{secrets.token_hex(8)} {origin.run}, process {os.getpid()} of {socket.gethostname()}"
        stats = pool.open(
            tokenizer_digest=origin.tokenizer_digest,
            cap=ALL if new else None,
            read_only=not writes,
            holder=holder if writes and origin.main else None,
        )
        if writes and stats.sealed:
            raise PoolError(
                f'pool {pool.name} is sealed, and nothing can be added: source="offline" draws from it, another one is filled'
            )
        looked_at = pool.sample(pool.prompt_page(LOOKED_AT), 4, seed=0, step=0, minimum=1).trajectories()
        reasons = [self._unlike(member) for members in looked_at.values() for member in members]
        if reasons and all(reasons):  # single ones are left out of what is drawn
            raise PoolError(reasons[0])
        if writes and origin.main:
            self._rewind(stats)
        return True

    def _rewind(self, stats: PoolStats) -> None:
        """Remove what this run stored in the step at which it goes on, or later."""
        first, run, pool = self._first, self._origin.run, self._pool
        versions = [label.rpartition("@") for label in stats.by_policy]
        own = any(name == run and int(version) >= first for name, _, version in versions)
        if not own and OTHERS not in stats.by_policy:
            return
        lost: dict[str, list[str]] = {}
        for record in pool.records():
            member = trajectory_of(record)
            if self._birth(member) >= first:
                lost.setdefault(member.prompt_id, []).append(member.content_id)
        if lost and not first and not self._restart:
            raise PoolError(
                f"pool {pool.name} holds {counted(sum(map(len, lost.values())), 'response')} of an earlier start of run {run}, "
                "and this one begins at step 0: resume from a checkpoint, name the run differently (run=…), or have them "
                "removed (restart=True)"
            )
        for prompt_id, ids in lost.items():
            pool.remove(prompt_id, ids)
        _log.info("removed %d responses born in step %d or later", sum(map(len, lost.values())), first)

    def _drawn(self, step: int, prompt_ids: Sequence[str], count: int) -> Replays:
        rule, chooses = self._rule, type(self._method).choose is not ReplayMethod.choose
        if rule.source == "offline" and rule.selection == "uniform" and not chooses:
            stored = self._pool.sample(prompt_ids, count, seed=self._seed, step=step, minimum=rule.minimum)
            chosen = stored.trajectories()
        else:
            sample = self._pool.sample(prompt_ids, ALL, seed=self._seed, step=step, minimum=1)
            every = iter(range(len(sample.ids)))
            places = {
                prompt_id: {sample.ids[k]: k for k in itertools.islice(every, held)}
                for prompt_id, held in zip(sample.prompt_ids, sample.counts.tolist(), strict=True)
            }
            chosen = {
                name: tuple(self._chosen(step, name, _Held(sample, name, places[name]), count)) for name in places
            }
        usable = {prompt_id: self._usable(prompt_id, replays) for prompt_id, replays in chosen.items()}
        return {prompt_id: replays for prompt_id, replays in usable.items() if replays}

    def _usable(self, prompt_id: str, replays: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """Leave out, and count, what this run cannot train on: others may have stored it.

        That is also a response with a reward by which its group's advantages would be 0 or NaN.
        """
        origin = self._origin
        rules = {
            "tokenizer_digest": origin.tokenizer_digest,
            "vocabulary": origin.vocabulary,
            "max_tokens": origin.max_tokens,
            "limit": origin.limit,
            "template_digest": "" if self._rule.other_template == "render" else origin.template_digest,
            "environment_digest": origin.environment_digest,
        }
        fit, reasons = fitting(prompt_id, replays, **rules)
        usable = tuple(member for member in fit if is_finite(stored_reward(member) or 0.0))
        reasons += ["its stored reward is not finite"] * (len(fit) - len(usable))
        self._counts.unfit += len(reasons)
        if reasons:
            self._warn_once(
                "pool %s holds responses that this run cannot train on, which are left out and counted as unfit; the first: %s",
                self._pool.name,
                reasons[0],
            )
        return usable

    def _warn_once(self, line: str, *values: object) -> None:
        if line not in self._told:
            self._told.add(line)
            _log.warning(line, *values)

    def _chosen(self, step: int, prompt_id: str, held: _Held, count: int) -> Sequence[Trajectory]:
        rule, births = self._rule, self._births_of(step, held)
        own = self._own[prompt_id] = {content_id: birth for content_id, birth in births.items() if birth >= 0}
        visible = seen(own, step, per_question=rule.per_question, max_age=rule.max_age)
        ids = sorted(
            content_id
            for content_id in births
            if content_id in visible or (content_id not in own and rule.source != "live")
        )
        if len(ids) < rule.minimum:
            return ()
        if type(self._method).choose is not ReplayMethod.choose:
            members = [held.member(content_id, births) for content_id in ids]
            return self._method.choose(step, prompt_id, members, count)
        if rule.selection != "uniform":
            candidates = [Candidate.of(held.member(content_id, births)) for content_id in ids]
            picks = select(rule.selection, candidates, count, prompt_id=prompt_id, seed=self._seed, step=step)
            return [held.member(ids[pick], births) for pick in picks]
        drawn = draw_ids(
            {prompt_id: ids},
            count,
            minimum=rule.minimum,
            seed=self._seed,
            step=step,
            births={prompt_id: births},
            decay=rule.age_decay,
        )
        return [held.member(content_id, births) for content_id in drawn[prompt_id]]

    def _births_of(self, step: int, held: _Held) -> dict[str, int]:
        """Content id → birth; −1: another run's. Unpacked once in a process, but for those of a future that may be lost."""
        births = {}
        for content_id in held.places:
            birth = self._births.get(content_id)
            if birth is None:
                birth = self._birth(held.member(content_id, {}))
                if birth < step:
                    self._births[content_id] = birth
            births[content_id] = birth
        return births

    def _birth(self, member: Trajectory) -> int:
        """The step of this run in which a response was born; −1: it is another run's."""
        return member.provenance.policy_version if member.provenance.policy_digest == self._origin.run else -1

    def _unlike(self, member: Trajectory) -> str:
        """Say why a response is of another environment or template than this run's; empty: it is not."""
        name, provenance, origin = self._pool.name, member.provenance, self._origin
        if provenance.environment_digest != origin.environment_digest:
            return (
                f"pool {name} holds {played_in(provenance.environment_digest)}; this run's are "
                f"{played_in(origin.environment_digest)}. Use another pool name, or what filled it"
            )
        if self._rule.other_template == "refuse" and provenance.prompted_otherwise(origin.template_digest):
            return (
                f"pool {name} holds responses to prompts of chat template {provenance.template_digest}; this run's is "
                f"{origin.template_digest}. Use another pool name, or the template and its arguments that filled it; "
                'other_template="render" trains them after this run\'s prompts'
            )
        return ""

    def _trajectory(self, step: int, row: Row) -> Trajectory:
        origin = self._origin
        verdict = Verdict("correct" if self.is_success(row) else "wrong", None, origin.verifier, "1")
        return Trajectory(
            prompt_id=row.prompt_id,
            tokens=row.tokens,
            logprobs=row.logprobs,
            finish_reason="stop" if row.finished else "length",
            verdict=verdict,
            provenance=Provenance(
                origin.run,
                step,
                origin.tokenizer_digest,
                origin.sampling,
                origin.logprobs_mode,
                origin.logprobs_dtype,
                origin.template_digest,
                origin.environment_digest,
            ),
            created_at=time.time(),
            sample_id=f"{origin.run}/{step}",
            metadata={} if row.reward is None else {REWARD: repr(float(row.reward))},
            sampled=row.sampled,
        )

    def _count(self, step: int, drawn: Replays, wanted: Sequence[str]) -> None:
        self._counts.replayed(step, [member for replays in drawn.values() for member in replays])
        self._counts.empty += len(wanted) - len(drawn)

    def _asked(self, call: Callable[[], T], *, otherwise: T) -> T:
        """Return what a call of the pool gives, or ``otherwise`` where the server is away and the run goes on."""
        if time.monotonic() >= self._again:
            try:
                return call()
            except DeadlineExceeded as error:
                if self._away == "stop":
                    raise
                self._again = time.monotonic() + PAUSE_S
                _log.warning("training goes on without replays, the pool is asked again in %g s: %s", PAUSE_S, error)
        self._counts.away += 1
        return otherwise
