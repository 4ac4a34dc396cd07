"""Every constraint between two keys, from its declaration: the refusal that names both, and the reference page."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from rlep.config.schema import Config
from rlep.config.section import CorrectionConfig, Rule, refusals, rules
from scripts.config_table import table

RULES = [(f"{name}.{key}", rule) for name, part in Config() for key, rule in rules(type(part))]
TIS = CorrectionConfig(weight="token", cap=2.0)
NUMBERS = (1, 0.5, 1.5, 2, 7, "x")


def default_of(key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(Config(), section), name)


def with_value(config: Config, key: str, value: object) -> Config:
    section, name = key.split(".")
    return config.with_values(**{section: {name: value}})


def another(key: str, forbidden: tuple[object, ...] = ()) -> object:
    """A value of the key's own kind that is not its default, nor one of these."""
    section, name = key.split(".")
    annotation = type(getattr(Config(), section)).model_fields[name].annotation
    kinds = annotation if isinstance(annotation, type) else None
    choices = (True, False) if kinds is bool else get_args(annotation) if not kinds else NUMBERS
    values = NUMBERS if not choices or isinstance(choices[0], type) else choices
    return next(value for value in values if value != default_of(key) and value not in forbidden)


def violating(key: str, rule: Rule) -> Config:
    """The defaults, changed until the rule is broken."""
    config = with_value(Config(), key, rule.when[0] if rule.when else another(key))
    for other, values in rule.where.items():
        config = with_value(config, other, values[0])
    if rule.kind == "with":
        return with_value(
            config, rule.key, rule.values[0] if rule.values else default_of(rule.key) or another(rule.key)
        )
    wrong = default_of(rule.key) if default_of(rule.key) not in rule.values else another(rule.key, rule.values)
    return with_value(config, rule.key, wrong if rule.values else type(default_of(rule.key) or False)())


@pytest.mark.parametrize(("key", "rule"), RULES, ids=[f"{key}: {rule}" for key, rule in RULES])
def test_a_rule_that_is_broken_is_refused_with_both_keys_and_the_reason(key: str, rule: Rule) -> None:
    said = [text for text in refusals(violating(key, rule)) if text.startswith(f"{key} = ") and rule.key in text]
    assert any(rule.because in text for text in said), said
    assert not list(refusals(Config()))


@pytest.mark.parametrize(("key", "rule"), RULES, ids=[f"{key}: {rule}" for key, rule in RULES])
def test_a_rule_stands_on_the_reference_page(key: str, rule: Rule) -> None:
    (row,) = [line for line in table().splitlines() if line.startswith(f"| `{key}` |")]
    assert str(rule).casefold() in row.casefold()


def test_a_rule_names_a_key_that_exists() -> None:
    for _, rule in RULES:
        for key in (rule.key, *rule.where):
            default_of(key)


def test_sentences_by_hand() -> None:
    config = Config().with_values(
        update={"stream": True}, rollout={"dynamic_sampling": True}, loss={"correction": TIS}, replay={"weight": 0.5}
    )
    assert list(refusals(config.with_values(rollout={"dynamic_sampling": True, "top_p": 0.9}))) == [
        "replay.weight = 0.5 needs replay.count, not 0: set the replays of a group, or replay.count = 0 itself for none",
        'loss.correction = { weight = "token", cap = 2 } needs rollout.top_p = 1, not 0.9: log-probs of the sampler are those of '
        "the unchanged distribution, so importance weights of a changed one are wrong",
        "update.stream = true with rollout.dynamic_sampling = true: which groups a step trains on is known only when all "
        "are verified; switch one of them off",
    ]
