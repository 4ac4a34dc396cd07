"""Which stored responses a step replays, and how their tokens enter the loss."""

from __future__ import annotations

import sys
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlep.config.roles import Count, Positive, Section
from rlep.core.errors import ConfigError

LONGEST_LIVE_NAME = 59
"""Characters of ``run.name`` that leave room for ``.live`` in the name of a pool."""


class ReplayConfig(Section):
    """How successes from the experience pool are replayed."""

    count: Count = 0
    """M: replays mixed into each group. 0 is phase 1: the pool is not used, whatever else of this section is set."""
    schedule: Literal["constant", "linear"] = "constant"
    """``linear`` lowers M to 0 over ``run.steps``."""
    source: Literal["offline", "live", "both"] = "offline"
    """``offline``: the pool that ``rlep collect`` filled (paper). ``live``: this run's own earlier successes, in the pool
    ``<run.name>.live``. ``both``: either."""
    group: Literal["add", "replace"] = "add"
    """``add``: a group is G fresh responses and m ≤ M replays (paper). ``replace``: of G in all, m are replays."""
    selection: Literal[
        "uniform", "shortest", "diverse", "least-used", "most-probable", "least-probable", "recent", "newest"
    ] = "uniform"
    """How M are chosen from a prompt's pool: ``uniform`` without replacement (paper), or ranked among all stored ones;
    ``newest`` by the step they come from."""
    questions: Literal["batch", "bucket"] = "batch"
    """``batch``: the step's prompts, all of them get replays (paper). ``bucket``: a share of the step's prompts is drawn by how
    often their latest responses were correct (ExGRPO), and only they get replays."""
    ratio: float = Field(0.5, gt=0, lt=1)
    """``questions = "bucket"``: that share."""
    bucket_mean: float = Field(0.5, ge=0, le=1)
    """Of a normal density over the share of correct responses: each bucket's weight."""
    bucket_std: float = Field(0.125, gt=0)
    """Its standard deviation."""
    per_question: Positive = 16
    """Live responses of a prompt that are kept: its newest."""
    max_age: Count = 0
    """Steps after which a live response is not replayed any more; 0: never."""
    age_decay: float = Field(0.0, ge=0)
    """τ in steps: a live response is drawn with weight e^(−age/τ), by ``selection = "uniform"``; 0: all alike."""
    start_accuracy: float = Field(0.0, ge=0, le=1)
    """No live replay before the first step with this share of correct fresh responses; once reached, it stays so."""
    retire_after: Count = 0
    """Visits in a row with nothing but correct fresh responses after which a prompt gets no live replays; 0: never."""
    idle_steps: Count = 100
    """End the run when replays were wanted, and none reached the loss, in so many steps in a row; 0: never."""
    minimum: Positive = 2
    """A prompt with fewer verified responses in the pool is not replayed."""
    require: bool = False
    """Fail when a prompt has fewer than M stored responses, instead of training a smaller group."""
    only_below: float | None = Field(None, gt=0, le=1)
    """Replay only for prompts whose share of fresh successes is below this; None (``"none"`` in TOML) replays for all (paper)."""
    old_logprobs: Literal["recompute", "behaviour", "unit"] = "recompute"
    """Denominator of a replay's ratio: the learner's own at the start of the step, the stored one, or 1."""
    is_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling of replays: their terms are multiplied by min(π0/μ, this), μ as stored; None is off."""
    shaping: float = Field(0.0, ge=0)
    """γ: replays are trained by −A·f(ratio), f(x) = x/(x+γ), without clip (LUFFY, ExGRPO: 0.1); 0 is off."""
    weight: float = Field(1.0, ge=0)
    """λ: factor of the policy term of replayed tokens."""
    rescue_only: bool = False
    """Replay only where no fresh response is correct."""
    start_step: Count = 0
    """Steps before the first replay."""
    failed: Count = 0
    """Wrong responses mixed in beside the M successes; ``collection.failed`` stores them (paper's ablation: no gain)."""

    @field_validator("only_below", mode="before")
    @classmethod
    def _below_zero_is_nothing(cls, value: object) -> object:
        if value == 0 and not isinstance(value, bool):
            raise ValueError('no prompt is below it; replay.count = 0 replays for none, "none" for all')
        return value

    @property
    def below(self) -> float | None:
        """Share of fresh successes under which a prompt is replayed; None: always."""
        return sys.float_info.min if self.rescue_only else self.only_below

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.count or "count" not in self.model_fields_set:
            self._check()
        if not self.count:
            for name in ReplayConfig.model_fields.keys() - {"count", "minimum", "idle_steps"}:
                object.__setattr__(self, name, ReplayConfig.model_fields[name].default)  # the model is frozen
        return self

    def _check(self) -> None:
        needing = ("source", "group", "require", "failed", "is_cap", "shaping", "rescue_only", "start_step")
        for name in (*needing, "weight"):
            if getattr(self, name) != ReplayConfig.model_fields[name].default and not self.count:
                raise ConfigError(
                    f"replay.{name} is set but replay.count = 0, its default: set the replays of a group, or "
                    "replay.count=0 itself for none"
                )
        self._check_source()
        if self.rescue_only and self.only_below is not None:
            raise ConfigError(
                f"replay.rescue_only = true and replay.only_below = {self.only_below}: the former is the latter with a bound "
                "that only 0 is below; set one of them"
            )
        if self.group == "replace" and self.below is not None:
            name = "rescue_only" if self.rescue_only else "only_below"
            raise ConfigError(
                f'replay.group = "replace" with replay.{name}: who gets replays would be known only after all G responses are '
                "generated"
            )
        if self.shaping and self.old_logprobs == "recompute":
            raise ConfigError(
                f'replay.shaping = {self.shaping} with replay.old_logprobs = "recompute": the ratio that is shaped is the one to '
                'the sampler ("behaviour") or to 1 ("unit")'
            )
        if self.is_cap is not None and self.old_logprobs != "recompute":
            raise ConfigError(
                f'replay.is_cap = {self.is_cap} with replay.old_logprobs = "{self.old_logprobs}": truncated importance sampling '
                'multiplies the ratio to the start of the step; it needs "recompute"'
            )

    def _check_source(self) -> None:
        live = f'replay.source = "{self.source}"'
        for name in ("questions", "per_question", "max_age", "age_decay", "start_accuracy", "retire_after"):
            if self.source == "offline" and getattr(self, name) != ReplayConfig.model_fields[name].default:
                raise ConfigError(f'replay.{name} is of live replays, but {live}; set "live" or "both"')
        for name in ("ratio", "bucket_mean", "bucket_std"):
            if self.questions == "batch" and getattr(self, name) != ReplayConfig.model_fields[name].default:
                raise ConfigError(f'replay.{name} is of replay.questions = "bucket", but that is "batch"')
        if self.age_decay and (self.source != "live" or self.selection != "uniform"):
            raise ConfigError(
                f'replay.age_decay = {self.age_decay} with replay.source = "{self.source}" and replay.selection = '
                f'"{self.selection}": it weighs the draw of "uniform" among "live" responses'
            )
        if self.source == "offline" and self.selection == "newest":
            raise ConfigError(f'replay.selection = "newest" is of live replays, but {live}; "recent" goes by the clock')
        if self.source != "offline" and self.selection == "recent":
            raise ConfigError(
                f'replay.selection = "recent" with {live} goes by the clock, and would differ in a continued run; '
                'set "newest"'
            )
        if self.source == "live" and (self.failed or self.require):
            name = "failed" if self.failed else "require"
            raise ConfigError(f"replay.{name} needs an offline pool, but {live}")


def check_live(replay: ReplayConfig, *, url: str, run_name: str, max_staleness: int) -> None:
    """What live replay needs of the pool's address, the run's name and the rollouts. Raises ``ConfigError``."""
    source = f'replay.source = "{replay.source}"'
    if replay.source == "offline":
        return
    if url.startswith("grpc"):
        raise ConfigError(f"{source} with pool.url = {url}: a run's own responses are kept in a Redis, or embedded")
    if len(run_name) > LONGEST_LIVE_NAME:
        raise ConfigError(f"{source} with run.name = {run_name}: at most {LONGEST_LIVE_NAME} characters")
    if replay.questions == "bucket" and max_staleness:
        raise ConfigError(
            'replay.questions = "bucket" with rollout.max_staleness: later steps\' prompts are not known yet'
        )
