"""Sections of the configuration, and constraints between two keys, which the field of one of them declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator


def _none_is_zero(value: object) -> object:
    return 0 if value == "none" else value


Positive = Annotated[int, Field(ge=1)]
Processes = Annotated[int, Field(ge=1, le=1024)]
"""Processes of one machine: more are a slip of the pen, and would take it down."""
Count = Annotated[int, Field(ge=0), BeforeValidator(_none_is_zero)]
Weight = Annotated[float, Field(ge=0), BeforeValidator(_none_is_zero)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the tree: frozen; unknown keys, NaN, infinity and true or false in a number's place are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("must be a number or text, not true or false")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _none_or_zero(cls, value: object, info: ValidationInfo) -> object:
        """``"none"`` (TOML has no null), and 0 as a number, are None where a key may be None; of a table, ``"none"`` is empty."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if get_origin(annotation) is dict:
            return {} if value == "none" else value
        kinds = get_args(annotation)
        if NoneType not in kinds:
            return value
        zero = value == 0 and not isinstance(value, bool) and not {str, Path} & set(kinds)
        return None if zero or value == "none" else value


RatioLevel = Literal["token", "sequence", "geometric"]
"""The probability ratio of a token, the product of its sequence's ratios, or their geometric mean."""


class CorrectionConfig(Section):
    """Correction of tokens for the policy that sampled them, by ratios ρ = π_θ0 / μ of the learner to the sampler.

    Truncated importance sampling is ``{ weight = "token", cap = 2.0 }``, IcePop ``{ weight = "token", mask = "token", low = 0.5,
    high = 5.0 }``, masked importance sampling ``{ weight = "sequence", mask = "sequence", high = 2.0 }``.
    """

    weight: RatioLevel | None = None
    """Ratio by which a token's term is multiplied; None: 1."""
    cap: float | None = Field(None, gt=0)
    """Largest weight: a larger one is truncated to it; None is none."""
    mask: RatioLevel | None = None
    """Ratio that must lie within ``low`` and ``high``: a token or sequence outside them is left out; None leaves out none."""
    low: float = Field(0.0, ge=0)
    """Least ratio that is kept."""
    high: float | None = Field(None, gt=0)
    """Largest ratio that is kept; None is none."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.cap is not None and self.weight is None:
            raise ValueError('cap truncates a weight: set weight, e.g. to "token"')
        bounded = self.low > 0 or self.high is not None
        if bounded is not (self.mask is not None):
            raise ValueError(
                "mask leaves out what is outside low and high: set mask and one of those, or none of the three"
            )
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        if self.cap is None and self.mask is None:
            raise ValueError("nothing bounds a ratio here: set cap, e.g. to 2, or a mask")
        return self


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint between the key that declares it and another key; it holds where the declaring key is set."""

    key: str
    """The other key, e.g. ``loss.correction``."""
    values: tuple[object, ...]
    """Values of the other key that are needed or refused; without any: all that switch it on."""
    because: str
    """Reason and remedy."""
    when: tuple[object, ...] = ()
    """Values of the declaring key for which the rule holds; without any: all but its default."""
    where: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Values of further keys for which the rule holds."""
    kind: Literal["needs", "with"] = "needs"

    def allows(self, value: object) -> bool:
        """Return True if the other key may have this value."""
        matches = value in self.values if self.values else bool(value)
        return matches is (self.kind == "needs")

    def sentence(self, key: str, value: object, other: object) -> str:
        """The refusal of ``key = value`` beside another key that is ``other``."""
        if self.kind == "with":
            return f"{assigned(key, value)} with {assigned(self.key, other)}: {self.because}"
        needed = f"{self.key} = {' or '.join(map(shown, self.values))}" if self.values else self.key
        return f"{assigned(key, value)} needs {needed}, not {shown(other)}: {self.because}"

    def __str__(self) -> str:
        """The rule as the reference page says it."""
        values = " or ".join(f"`{shown(value)}`" for value in self.values)
        other = f"`{self.key}`" + (f" = {values}" if values else "")
        held = " or ".join(f"`{shown(value)}`" for value in self.when)
        return f"{held + ' ' if held else ''}{'needs' if self.kind == 'needs' else 'not with'} {other}"


def needs(
    key: str,
    *values: object,
    because: str,
    when: tuple[object, ...] = (),
    where: Mapping[str, tuple[object, ...]] | None = None,
) -> Rule:
    """A rule by which another key must have one of ``values``, or be on."""
    return Rule(key, values, because, when, where or {})


def clashes(key: str, *values: object, because: str, when: tuple[object, ...] = ()) -> Rule:
    """A rule by which another key must have none of ``values``, or be off."""
    return Rule(key, values, because, when, kind="with")


def option(default: object, *, requires: Iterable[Rule] = (), excludes: Iterable[Rule] = (), **bounds: Any) -> Any:
    """A field of a section with its constraints: bounds as pydantic's ``Field`` takes them, rules between keys."""
    declared = Field(default, **bounds)
    declared.metadata.extend([*requires, *excludes])
    return declared


def rules(section: type[BaseModel]) -> Iterable[tuple[str, Rule]]:
    """The rules of a section by the name of the field that declares each."""
    for name, declared in section.model_fields.items():
        for part in declared.metadata:
            if isinstance(part, Rule):
                yield name, part


def refusals(config: BaseModel) -> Iterable[str]:
    """A sentence for each rule that a configuration breaks, in the order of its keys."""

    def value_of(key: str) -> object:
        section, _, name = key.partition(".")
        return getattr(getattr(config, section), name)

    for section, part in config:
        for name, rule in rules(type(part)):
            value = getattr(part, name)
            holds = value in rule.when if rule.when else value != type(part).model_fields[name].default
            if holds and all(value_of(key) in values for key, values in rule.where.items()):
                other = value_of(rule.key)
                if not rule.allows(other):
                    yield rule.sentence(f"{section}.{name}", value, other)


def assigned(key: str, value: object) -> str:
    """``key = value`` as a TOML file has it."""
    return f"{key} = {shown(value)}"


def shown(value: object) -> str:
    """A value as a TOML file has it; a number in as few digits as it needs."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(assigned(name, inner) for name, inner in value.items())} }}"
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else f'"{value}"'
