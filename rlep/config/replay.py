"""Choice of the stored responses that a step replays, and of the terms by which their tokens enter the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlep.config.sampling import SamplingConfig
from rlep.config.section import CorrectionConfig, Count, Positive, Rule, Section, clashes, needs, option, rules
from rlep.core.errors import ConfigError

_COUNT = needs("replay.count", because="set the replays of a group, or replay.count = 0 itself for none")
_LIVE = needs("replay.source", "live", "both", because="it is about the run's own responses")
_OFFLINE = clashes("replay.source", "live", because="it needs an offline pool")
_UNCHANGED = (
    "log-probs of the sampler are those of the unchanged distribution, so importance weights of a changed one are wrong"
)

_WARM = (
    'set loss.temperature = "rollout": log-probs are those of temperature 1, so importance weights of another are wrong'
)
_AT_ONE = {"loss.temperature": (1,)}

Selection = Literal[
    "uniform", "shortest", "diverse", "least-used", "most-probable", "least-probable", "recent", "newest"
]
OldLogprobs = Literal["recompute", "behaviour", "unit"]
"""``recompute``: under θ0, like fresh tokens, so the ratio starts at 1 (the authors). ``behaviour``: as stored, under
the policy that generated the response. ``unit``: probability 1, so the ratio is π itself (LUFFY, arXiv 2504.14945)."""


def plain_sampling(when: tuple[object, ...] = (), **conditions: tuple[object, ...]) -> Iterable[Rule]:
    """Rules of importance weights, which need rollouts of the policy's own distribution."""
    where = {f"replay.{name}": values for name, values in conditions.items()}
    plain = {name: field.default for name, field in SamplingConfig.model_fields.items()}
    warm = needs("rollout.temperature", plain.pop("temperature"), because=_WARM, when=when, where=where | _AT_ONE)
    others = plain.items()
    return [
        warm,
        *(needs(f"rollout.{key}", value, because=_UNCHANGED, when=when, where=where) for key, value in others),
    ]


class ReplayConfig(Section):
    """Replay of successes from the experience pool."""

    method: str = option("rlep", requires=[_COUNT])
    """Method of questions, replays and terms: ``rlep`` (paper), ``live``, ``exgrpo``, ``luffy``, or your own
    ``python:module:Class``. A method brings values for the keys below; those set in the same file or later win."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers of the method, by its class's attributes, e.g. ``start_accuracy = 0.1`` for ``exgrpo``."""
    count: Count = 0
    """M: replays mixed into each group. 0 is phase 1: the pool is not used, whatever else of this section is set."""
    schedule: Literal["constant", "linear"] = "constant"
    """``linear`` lowers M to 0 over ``run.steps``."""
    source: Literal["offline", "live", "both"] = option("offline", requires=[_COUNT])
    """``offline``: the pool that ``rlep collect`` filled (paper). ``live``: this run's own earlier successes, in the pool
    ``<run.name>.live``. ``both``: either."""
    group: Literal["add", "replace"] = option(
        "add",
        requires=[_COUNT],
        excludes=[
            clashes(
                "replay.only_below", because="who gets replays would be known only after all G responses are generated"
            ),
            clashes("rollout.max_staleness", because="requests are sent before replays are drawn"),
            clashes("update.stream", because="requests are sent before replays are drawn"),
        ],
    )
    """``add``: a group is G fresh responses and m ≤ M replays (paper). ``replace``: of G in all, m are replays."""
    selection: Selection = option(
        "uniform",
        requires=[
            needs("replay.source", "live", "both", when=("newest",), because='"recent" goes by the clock'),
            needs(
                "replay.source",
                "offline",
                when=("recent",),
                because='"recent" goes by the clock, and would differ in a continued run; set "newest"',
            ),
        ],
    )
    """Choice of M from a prompt's pool: ``uniform`` without replacement (paper), or ranked among all stored ones;
    ``newest`` by the step they come from."""
    per_question: Positive = option(16, requires=[_LIVE])
    """Live responses of a prompt that are kept: its newest. One that has left, by this or by ``max_age``, and is sampled anew
    is stored again only (``checkpoint.keep`` + 1) × ``checkpoint.every`` steps later, when no checkpoint needs the old one."""
    max_age: Count = option(0, requires=[_LIVE])
    """Steps after which a live response is not replayed any more; 0: never."""
    age_decay: float = option(
        0.0,
        requires=[
            needs("replay.source", "live", because='it weighs the draw among "live" responses'),
            needs("replay.selection", "uniform", because='it weighs the draw of "uniform"'),
        ],
        ge=0,
    )
    """τ in steps: a live response is drawn with weight e^(−age/τ), by ``selection = "uniform"``; 0: all alike."""
    idle_steps: Count = 100
    """End the run when replays were wanted, and none reached the loss, in so many steps in a row; 0: never."""
    minimum: Positive = 2
    """A prompt with fewer verified responses in the pool is not replayed."""
    require: bool = option(False, requires=[_COUNT], excludes=[_OFFLINE])
    """Fail when a prompt has fewer than M stored responses, instead of training a smaller group."""
    only_below: float | None = option(None, gt=0, le=1)
    """Replay only for prompts whose share of fresh successes is below this; None (``"none"`` in TOML) replays for all (paper)."""
    old_logprobs: OldLogprobs = option(
        "recompute", requires=plain_sampling(when=("behaviour",), source=("live", "both"))
    )
    """Denominator of a replay's ratio: the learner's own at the start of the step, the stored one, or 1."""
    correction: CorrectionConfig | None = option(
        None,
        requires=[
            _COUNT,
            needs(
                "replay.old_logprobs",
                "recompute",
                because="importance sampling multiplies the ratio to the start of the step",
            ),
            *plain_sampling(source=("live", "both")),  # a pool's records say themselves how they were sampled
        ],
    )
    """Importance weights and masks of replayed tokens, as ``loss.correction``, μ as stored; None is off."""
    shaping: float = option(
        0.0,
        requires=[
            _COUNT,
            needs("replay.old_logprobs", "behaviour", "unit", because="it shapes the ratio to the sampler, or to 1"),
            needs("loss.level", "token", because="it shapes a token's own ratio"),
            needs("loss.surrogate", "ppo", because="it takes the place of the clipped surrogate"),
        ],
        excludes=[clashes("replay.correction", because="both correct for the sampler; set one of them")],
        ge=0,
    )
    """γ: replays are trained by −A·f(ratio), f(x) = x/(x+γ), without clip (LUFFY, ExGRPO: 0.1); 0 is off."""
    weight: float = option(1.0, requires=[_COUNT], ge=0)
    """λ: factor of the policy term of replayed tokens."""
    start_step: Count = option(0, requires=[_COUNT])
    """Steps before the first replay."""
    other_template: Literal["refuse", "render"] = option("refuse", requires=[_COUNT])
    """Stored responses whose prompt was made otherwise, by another ``model.template`` or system prompt: ``refuse`` leaves them
    out, ``render`` trains them after this run's prompt. Those that do not say, such as imported texts, are always taken so."""
    failed: Count = option(0, requires=[_COUNT], excludes=[_OFFLINE])
    """Wrong responses mixed in beside the M successes; ``collection.failed`` stores them (paper's ablation: no gain)."""

    def count_at(self, step: int, steps: int) -> int:
        """Return M of a step (0, 1, …) of a run of ``steps``, rounded half up."""
        if step < self.start_step:
            return 0
        if self.schedule == "constant":
            return self.count
        return math.floor(self.count - self.count * min(step / steps, 1.0) + 0.5)

    def check_schedule(self, steps: int) -> None:
        """Raise ``ConfigError`` where no step of a run of ``steps`` has replays, though some are asked for."""
        if self.start_step >= steps:
            raise ConfigError(f"replay.start_step = {self.start_step} leaves no step for replays: the run has {steps}")
        if self.count and not self.count_at(self.start_step, steps):
            raise ConfigError(
                f'replay.schedule = "{self.schedule}" with replay.count = {self.count} and replay.start_step = '
                f"{self.start_step} rounds to no replay in any of {steps} steps; begin earlier, or raise the count"
            )

    @property
    def compares_stored(self) -> bool:
        """True where stored log-probs of replays enter the loss."""
        return self.old_logprobs == "behaviour" or self.correction is not None

    @property
    def offline_minimum(self) -> int:
        """Responses that a draw from the collected pool needs; with ``both``, ``minimum`` counts those and the run's own."""
        return 1 if self.source == "both" else self.minimum

    @field_validator("only_below", mode="before")
    @classmethod
    def _below_zero_is_nothing(cls, value: object) -> object:
        if value == 0 and not isinstance(value, bool):
            raise ValueError('no prompt is below it; replay.count = 0 replays for none, "none" for all')
        return value

    @model_validator(mode="after")
    def _without_replays(self) -> Self:
        """Reset a section without replays, so that phase 1 of a run with a preset for phase 2 is phase 1.

        Where nobody has set ``count``, keys that have rules stay as they are, and are refused.
        """
        if not self.count:
            kept = {"count", "minimum", "idle_steps"}
            if "count" not in self.model_fields_set:
                kept |= {name for name, _ in rules(type(self))}
            defaults = ReplayConfig.model_construct().model_dump()
            for name in ReplayConfig.model_fields.keys() - kept:
                object.__setattr__(self, name, defaults[name])  # the model is frozen
        return self
