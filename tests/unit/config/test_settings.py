"""From files and --set to a config: layers, literals, mistakes named with their fix, no secret in any message."""

import json
import shlex
from pathlib import Path

import pytest

from rlep.config.schema import Config
from rlep.config.settings import (
    as_override,
    differences,
    dump_config,
    load_config,
    parse_config,
    parse_stored_config,
)
from rlep.core.errors import ConfigError


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_later_files_win_key_by_key_and_overrides_win_over_files(tmp_path: Path) -> None:
    left = written(tmp_path, "a.toml", "[run]\nseed = 1\nsteps = 10\n[update]\nlr = 1e-5\n")
    right = written(tmp_path, "b.toml", "[run]\nseed = 2\n")
    config = load_config([left, right], ["update.lr=3e-5", "update.lr=4e-5"])
    assert (config.run.seed, config.run.steps, config.update.lr) == (2, 10, 4e-5)
    assert load_config([right, left]).run.seed == 1


def test_a_nested_table_is_merged_and_a_list_is_replaced(tmp_path: Path) -> None:
    file = written(
        tmp_path, "a.toml", '[data]\nevaluation = ["x", "y"]\n[generator.label_selector]\nzone = "a"\nrole = "g"\n'
    )
    config = load_config([file], ["generator.label_selector.zone=b", 'data.evaluation=["z"]'])
    assert config.generator.label_selector == {"zone": "b", "role": "g"}
    assert config.data.evaluation == (Path("z"),)


def test_none_empties_a_table_of_an_earlier_file(tmp_path: Path) -> None:
    file = written(tmp_path, "a.toml", "[generator.label_selector]\nzone = 'a'\n")
    assert load_config([file], ["generator.label_selector=none"]).generator.label_selector == {}
    without = written(tmp_path, "b.toml", "[generator]\nlabel_selector = 'none'\n")
    again = load_config([file, without], ["generator.label_selector.role=g"])
    assert again.generator.label_selector == {"role": "g"}


def test_no_file_gives_the_defaults() -> None:
    assert load_config() == Config()


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("run.steps=7", "run", "steps", 7),
        ("update.lr=1e-4", "update", "lr", 1e-4),
        ("rollout.dynamic_sampling=true", "rollout", "dynamic_sampling", True),
        ("run.name=phase2.seed-1", "run", "name", "phase2.seed-1"),  # no TOML literal: a string
        ('run.name="7"', "run", "name", "7"),
        ("model.system_prompt=Think = win.", "model", "system_prompt", "Think = win."),  # only the first = counts
        ("update.betas=[0.8, 0.9]", "update", "betas", (0.8, 0.9)),
        ("pool.url=redis://rlep@host:6379/0", "pool", "url", "redis://rlep@host:6379/0"),
        ("pool.url=grpcs://[::1]:7171", "pool", "url", "grpcs://[::1]:7171"),
        ("loss.dual_clip=none", "loss", "dual_clip", None),
        (" run.seed =3", "run", "seed", 3),
    ],
)
def test_overrides_are_toml_literals_or_else_strings(text: str, section: str, key: str, value: object) -> None:
    assert getattr(getattr(load_config([], [text]), section), key) == value


@pytest.mark.parametrize("text", ["run.steps", "=3", "run..steps=3", ""])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form section\.key=value"):
        load_config([], [text])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rollout.promts=4", r"unknown key rollout\.promts; did you mean rollout\.prompts\?"),
        ("rollot.prompts=4", r"unknown key rollot\.prompts; did you mean rollout\.prompts\?"),
        ("lr=1e-4", r"unknown key lr; did you mean update\.lr\?"),
        ("rollout.lr=1e-4", r"unknown key rollout\.lr; did you mean update\.lr\?"),
        ("zzz=1", r"unknown key zzz; known: run, model, data, "),
        (
            "advantage.zzz=1",
            r"unknown key advantage\.zzz; known: estimator, k, ddof, eps, scale, drop_constant, count_constant",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        load_config([], [text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run.steps=0", r"run\.steps = 0: must be at least 1"),
        ("environment.workers=1000000", r"environment\.workers = 1000000: must be at most 1024"),
        ("verifier.workers=1025", r"verifier\.workers = 1025: must be at most 1024"),
        ("run.steps=many", r"run\.steps = 'many': must be a whole number"),
        ("rollout.top_p=1.5", r"rollout\.top_p = 1\.5: must be at most 1"),
        ("update.betas=[0.9, 1.0]", r"update\.betas\.1 = 1\.0: must be less than 1"),
        ("loss.aggregation=mean", r"loss\.aggregation = 'mean': must be 'token-mean'"),
        ("pool.url=http://host:1", r"a Redis URL starts with redis://.*, that of a pool server with grpc://"),
        ("pool.url=grpc://host", "the address of a pool server is grpc://HOST:PORT"),
        ("pool.url=grpc://host:70000", "the address of a pool server is grpc://HOST:PORT"),
        ("pool.url=grpcs://host:7171/pool", "the address of a pool server is grpc://HOST:PORT"),
        ("pool.token_file=token", r"pool\.token_file is for a pool server: it needs pool\.url = grpcs://"),
        ("pool.ca_file=ca.pem", r"pool\.ca_file is for a pool server's certificate"),
        ("replay.weight=-1", r"replay\.weight = -1: must be at least 0"),
        ("run.name=a b", r"run\.name = 'a b': must match the pattern"),
        (
            "generator.count=true",
            r"generator\.count = True: must be a number or text, not true or false",
        ),  # and not 1
        ("update.lr=false", r"update\.lr = False: must be a number or text, not true or false"),
        ("run=5", r"run is a section with keys, not one value"),
    ],
)
def test_a_wrong_value_is_named_with_its_bounds(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], [text])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["advantage.estimator=pass@k"],
            r'"pass@k" needs reward\.overlong_buffer = 0, not 512: it knows correct and wrong',
        ),
        (["advantage.k=2"], r'advantage\.k = 2 needs advantage\.estimator = "pass@k"'),
        (
            ["advantage.estimator=pass@k", "reward.overlong_buffer=0", "advantage.k=16"],
            r"advantage\.k = 16 with rollout\.fresh = 16: .* set it below rollout\.fresh",
        ),
        (["replay.group=replace", "rollout.fresh=2"], r"replay\.count = 2 and rollout\.fresh = 2: a group needs"),
        (["replay.source=live", f"run.name={'x' * 60}"], r"at most 59 characters"),
        (["replay.start_step=400"], r"replay\.start_step = 400 leaves no step for replays: the run has 400"),
        (
            ["replay.schedule=linear", "replay.start_step=301"],
            r'replay\.schedule = "linear" .* replay\.start_step = 301 rounds to no replay in any of 400 steps',
        ),
        (
            ["replay.source=live", "replay.minimum=2", "replay.per_question=1"],
            r"replay\.per_question = 1 keeps fewer responses of a question than replay\.minimum = 2",
        ),
        (["replay.max_age=3"], r'replay\.max_age = 3 needs replay\.source = "live" or "both", not "offline"'),
    ],
)
def test_replay_keys_that_contradict_each_other_are_both_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([], ["replay.count=2", *overrides])


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([], ["run.steps=0", "update.lr=-1"])
    assert [line.split(" = ")[0] for line in str(caught.value).splitlines()] == ["run.steps", "update.lr"]


def test_the_file_that_holds_a_mistake_is_named(tmp_path: Path) -> None:
    good = written(tmp_path, "good.toml", "[run]\nsteps = 4\n")
    key = written(tmp_path, "key.toml", "[run]\nstepz = 4\n")
    value = written(
        tmp_path, "value.toml", '[run]\nsteps = "many"\n[data]\nevaluation = "x"\n[update]\nbetas = [0.9, 2]\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config([good, key, good])
    assert str(caught.value) == f"{key}: unknown key run.stepz; did you mean run.steps?"
    with pytest.raises(ConfigError) as caught:
        load_config([value, good], ["update.lr=0"])
    assert [line.split(" = ")[0] for line in str(caught.value).splitlines()] == [
        f"{value}: data.evaluation",
        "update.lr",
        f"{value}: update.betas.1",
    ]
    assert "data.evaluation = 'x': must be a list" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file .*gone\.toml does not exist"):
        load_config([tmp_path / "gone.toml"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config([tmp_path])
    with pytest.raises(ConfigError, match=r"torn\.toml cannot be read: .*line 1"):
        load_config([written(tmp_path, "torn.toml", "[run\n")])
    (tmp_path / "latin.toml").write_bytes(b'[run]\nname = "\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml cannot be read"):
        load_config([tmp_path / "latin.toml"])


@pytest.mark.parametrize(
    "text",
    [
        'pool.url="redis://:hunter2@host"',
        'pool.url="redis://user:hunter2@host"',
        'pool.url="http://:hunter2@host"',
        'pool.url="redis://host?password=hunter2"',
        'pool.url=["redis://:hunter2@host"]',
        'pool="redis://:hunter2@host"',
    ],
)
def test_a_password_is_refused_and_never_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([], [text])
    assert "pool" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_json_and_back_is_the_same_config() -> None:
    config = load_config(
        [],
        [
            "loss.dual_clip=none",
            "pool.directory=runs/p",
            'data.evaluation=["a", "b"]',
            "generator.label_selector.zone=a",
            "replay.only_below=0.5",
        ],
    )
    assert parse_config(json.loads(dump_config(config))) == config


def test_differences_name_key_and_both_values() -> None:
    left = load_config([], ["update.lr=1e-5", "generator.label_selector.zone=a"])
    right = load_config([], ["run.seed=4"])
    assert differences(left, right) == {
        "generator.label_selector": (None, {}),
        "generator.label_selector.zone": ("a", None),
        "run.seed": (0, 4),
        "update.lr": (1e-05, 1e-06),
    }
    assert differences(left, left) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("update.lr", 1e-6),
        ("run.directory", "my runs/é'\"2"),
        ("data.evaluation", ["a b", "c"]),
        ("update.stream", True),
    ],
)
def test_an_override_for_the_shell_gives_the_same_value(key: str, value: object) -> None:
    option, override = shlex.split(as_override(key, value))
    section, name = key.split(".")
    assert option == "--set"
    assert load_config([], [override]).model_dump(mode="json")[section][name] == value


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"run": 3}, "run is a section with keys, not one value"),
        ({"run": {"stpes": 3}}, r"unknown key run\.stpes; did you mean run\.steps\?"),
        ({"run": {"steps": 0}}, r"run\.steps = 0: "),
    ],
)
def test_a_damaged_stored_config_is_refused_by_its_file(tmp_path: Path, tree: dict[str, object], reason: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{tmp_path}/config\.json: {reason}(?s:.*)if another version of rlep wrote it"
    ):
        parse_stored_config(tree, tmp_path / "config.json")


def test_a_list_that_is_no_toml_is_called_that() -> None:
    with pytest.raises(ConfigError, match=r"^--set .*rollout.stop=\[.* is not TOML: "):
        load_config([], [r'rollout.stop=["\ud800"]'])
