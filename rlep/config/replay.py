"""Which stored responses a step replays, and how their tokens enter the loss."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlep.config.roles import Count, Positive, Section
from rlep.core.errors import ConfigError

LONGEST_LIVE_NAME = 59
"""Characters of ``run.name`` that leave room for ``.live`` in the name of a pool."""


class ReplayConfig(Section):
    """How successes from the experience pool are replayed."""

    method: str = "rlep"
    """Who decides on questions, replays and terms: ``rlep`` (paper), ``live``, ``rescue``, ``exgrpo``, ``luffy``, or your own
    ``python:module:Class``. A method brings values for the keys below; the ones set in the same file or later win."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers of the method, by its class's attributes, e.g. ``start_accuracy = 0.1`` for ``exgrpo``."""
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
    per_question: Positive = 16
    """Live responses of a prompt that are kept: its newest."""
    max_age: Count = 0
    """Steps after which a live response is not replayed any more; 0: never."""
    age_decay: float = Field(0.0, ge=0)
    """τ in steps: a live response is drawn with weight e^(−age/τ), by ``selection = "uniform"``; 0: all alike."""
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.count or "count" not in self.model_fields_set:
            self._check()
        if not self.count:
            for name in ReplayConfig.model_fields.keys() - {"count", "minimum", "idle_steps"}:
                object.__setattr__(
                    self, name, ReplayConfig.model_fields[name].get_default(call_default_factory=True)
                )  # the model is frozen
        return self

    def _check(self) -> None:
        needing = ("source", "group", "require", "failed", "is_cap", "shaping", "start_step")
        for name in (*needing, "weight"):
            if getattr(self, name) != ReplayConfig.model_fields[name].default and not self.count:
                raise ConfigError(
                    f"replay.{name} is set but replay.count = 0, its default: set the replays of a group, or "
                    "replay.count=0 itself for none"
                )
        self._check_source()
        if self.group == "replace" and self.only_below is not None:
            raise ConfigError(
                'replay.group = "replace" with replay.only_below: who gets replays would be known only after all G responses are '
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
        for name in ("per_question", "max_age", "age_decay"):
            if self.source == "offline" and getattr(self, name) != ReplayConfig.model_fields[name].default:
                raise ConfigError(f'replay.{name} is of live replays, but {live}; set "live" or "both"')
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


def check_live(replay: ReplayConfig, *, url: str, run_name: str) -> None:
    """Raise ``ConfigError`` for a pool address or a run name that live replay cannot use."""
    source = f'replay.source = "{replay.source}"'
    if replay.source == "offline":
        return
    if url.startswith("grpc"):
        raise ConfigError(f"{source} with pool.url = {url}: a run's own responses are kept in a Redis, or embedded")
    if len(run_name) > LONGEST_LIVE_NAME:
        raise ConfigError(f"{source} with run.name = {run_name}: at most {LONGEST_LIVE_NAME} characters")
