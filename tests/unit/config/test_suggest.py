"""What an unknown key is answered with, and in whose words a wrong value is refused."""

from pathlib import Path
from typing import get_args

import pytest

from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.config.suggest import SYNONYMS, suggestions
from rlep.core.errors import ConfigError

KEYS = [f"{name}.{key}" for name, field in Config.model_fields.items() for key in field.annotation.model_fields]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learning_rate", ["update.lr"]),
        ("optim.learning_rate", ["update.lr"]),
        ("train.batch_size", ["rollout.prompts", "update.prompts"]),
        ("actor_rollout_ref.rollout.n", ["rollout.fresh"]),
        ("num_generations", ["rollout.fresh"]),
        ("model.model_name_or_path", ["model.path"]),
        ("rollout.promts", ["rollout.prompts"]),  # update.prompts has the same last name, and a path further away
        ("rollot.prompts", ["rollout.prompts"]),
        ("promts", ["rollout.prompts", "update.prompts"]),
        ("modelpath", ["model.path"]),
        ("run_steps", ["run.steps"]),
        ("Rollout.Max_Tokens", ["rollout.max_tokens"]),
        ("rollout.max-tokens", ["rollout.max_tokens"]),
        ("reward.zzz", []),
    ],
)
def test_the_nearest_keys_by_their_last_name_and_their_path(key: str, nearest: list[str]) -> None:
    assert suggestions(key, KEYS) == nearest


def test_every_synonym_leads_to_keys_that_exist_and_is_none_itself() -> None:
    assert {key for keys in SYNONYMS.values() for key in keys} <= set(KEYS)
    assert not set(SYNONYMS) & {key.partition(".")[2] for key in KEYS}


def test_the_first_key_of_an_unknown_section_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "verl.toml"
    file.write_text("[trainer]\ntotal_training_steps = 9\n")
    with pytest.raises(ConfigError) as refused:
        load_config([file])
    assert str(refused.value) == f"{file}: unknown key trainer.total_training_steps; did you mean run.steps?"


LIMITS = {
    "loss": ("dual_clip", "correction", "kl_coef", "entropy_coef"),
    "evaluation": ("final_samples", "every"),
    "generator": ("threads", "restarts"),
    "rollout": ("top_k",),
    "reward": ("overlong_buffer",),
    "update": ("warmup",),
    "replay": ("count",),
    "cluster": ("cpus",),
}


@pytest.mark.parametrize("key", [f"{section}.{name}" for section, names in LIMITS.items() for name in names])
def test_none_and_zero_mean_the_same_for_an_optional_limit(key: str) -> None:
    zero, none = load_config([], [f"{key}=0"]), load_config([], [f"{key}=none"])
    assert zero == none
    section, name = key.split(".")
    assert not getattr(getattr(zero, section), name)


def test_only_below_zero_is_refused_because_it_would_replay_for_no_prompt() -> None:
    assert load_config([], ["replay.only_below=none"]).replay.only_below is None
    with pytest.raises(ConfigError, match=r"replay\.only_below = 0: .*replay\.count = 0"):
        load_config([], ["replay.only_below=0"])


WRONG = ['"x y?"', "-1", "-1.5", "1e9", "inf", "nan", "true", "[]", "[1]", "[[1]]", '{"a"=[1]}', "1979-05-27", '""']


@pytest.mark.parametrize("value", WRONG)
def test_no_wrong_value_is_refused_in_the_words_of_pydantic(value: str) -> None:
    foreign = ("Input", "should", "valid", "Field", "required", "pydantic", "input", "String", "Value error")
    refused = 0
    for key in KEYS:
        try:
            load_config([], [f"{key}={value}"])
        except ConfigError as error:
            refused += 1
            for line in str(error).splitlines():
                text = line.partition(": ")[2] or line
                assert not any(word in text for word in foreign), line
    assert refused > 10


def test_a_field_of_alternatives_lists_them_all() -> None:
    kinds = get_args(type(Config().loss).model_fields["aggregation"].annotation)
    with pytest.raises(ConfigError) as refused:
        load_config([], ["loss.aggregation=mean"])
    assert all(kind in str(refused.value) for kind in kinds)
