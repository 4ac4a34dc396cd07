"""Methods of ``rlep.methods``: how a name becomes keys and decisions, and that a user's own class is as good as those."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rlep.config.settings import load_config, parse_stored_config
from rlep.core.errors import ConfigError
from rlep.core.jsonl import read_lines
from rlep.driver.replays import choose_method
from rlep.methods.exgrpo import ExGrpo
from rlep.methods.replay_method import METHODS, ReplayMethod, Visit, load_method
from tests.late_method import LATE
from tests.unit.driver.driver_fakes import Killed
from tests.unit.driver.driver_values import config_of, untimed
from tests.unit.driver.live_scene import TRAIN, Stored, batches, live_config, trained

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "write-a-replay-method.md"
BASE = ROOT / "configs" / "paper" / "rlep.toml"
OWN = "python:hard_questions:HardQuestions"
PLAIN = "python:rlep.methods.replay_method:ReplayMethod"
TIS = 'loss.correction={weight="token",cap=2}'
RECOMPUTED = ["replay.old_logprobs=recompute", "replay.shaping=0", "replay.group=add"]


@pytest.fixture
def _page(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's class, importable."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    directory = tmp_path_factory.mktemp("own")
    (directory / "hard_questions.py").write_text(code[0])
    monkeypatch.syspath_prepend(str(directory))


@pytest.mark.usefixtures("_page")
async def test_the_page_s_method_decides_questions_replays_and_terms_and_survives_a_kill(tmp_path: Path) -> None:
    config = live_config(run={"steps": 8}, replay={"method": OWN, "per_question": 4})
    assert (config.replay.source, config.replay.count, config.replay.weight) == ("live", 1, 0.5)
    whole = await trained(tmp_path / "whole", config, {})
    lines = [line["metrics"] for line in read_lines(tmp_path / "whole" / "metrics.jsonl")]
    assert sum(line["replay/trajectories"] for line in lines) > 4
    for line in lines:  # no group whose three fresh responses are all correct has a replay
        assert line["replay/trajectories"] <= sum(line["group/fresh_successes"][:3])
    stored: Stored = {}
    for kill_at in (150, 250):
        try:
            await trained(tmp_path / "killed", config, stored, kill_at)
        except Killed:
            continue
    again = await trained(tmp_path / "killed", config, stored)
    assert untimed(tmp_path / "killed") == untimed(tmp_path / "whole")
    assert again.scene.learner.state == whole.scene.learner.state
    assert batches(again) == batches(whole)[len(batches(whole)) - len(batches(again)) :]


@pytest.mark.usefixtures("_page")
async def test_the_page_s_questions_are_the_data_s_next_and_the_least_solved() -> None:
    method = load_method(OWN)(seed=1, fresh=4, options={"share": 0.25})
    method.restore({})
    method.learn(0, [Visit("e", 9, 3, 4), Visit("f", 9, 1, 4)])
    assert method.questions(1, ["a", "b", "c", "d"], {"e": 1, "f": 2}) == ["a", "b", "c", "f"]
    assert method.questions(1, ["a", "b", "c", "d"], {}) == ["a", "b", "c", "d"]
    continued = load_method(OWN)(seed=1, fresh=4, options={"share": 0.25})
    continued.restore(method.state())
    assert continued.questions(1, ["a", "b", "c", "d"], {"e": 1, "f": 2})[3] == "f"


def test_a_method_is_a_layer_of_its_own_keys_under_those_of_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[replay]\nmethod = "luffy"\nshaping = 0.2\n')
    replay = load_config([BASE, own], ["replay.minimum=3"]).replay
    assert (replay.count, replay.group, replay.old_logprobs) == (1, "replace", "unit")  # the base had two, added
    assert (replay.shaping, replay.minimum) == (0.2, 3)
    back = load_config([BASE, own], ["replay.method=rlep"]).replay
    assert (back.group, back.old_logprobs, back.shaping, back.source) == ("add", "recompute", 0.0, "offline")
    assert (back.count, back.minimum) == (2, 2)  # the base's, as no method is left that says otherwise
    stored = load_config([BASE, own]).model_dump(mode="json")
    assert parse_stored_config(stored, tmp_path / "config.json") == load_config([BASE, own])


def test_the_order_of_overrides_does_not_decide_whether_a_method_wins() -> None:
    for overrides in (["replay.count=4", "replay.method=exgrpo"], ["replay.method=exgrpo", "replay.count=4"]):
        assert load_config([BASE], overrides).replay.count == 4


@pytest.mark.parametrize("override", ["replay.per_question=8", "replay.max_age=3", f"replay.method={PLAIN}"])
def test_a_key_without_any_replays_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"needs replay\.(count|source)"):
        load_config([], [override])


def test_a_stored_config_runs_nobody_s_code(tmp_path: Path) -> None:
    stored = config_of().model_dump(mode="json")
    stored["replay"]["method"] = "python:no_such_module:Method"
    assert parse_stored_config(stored, tmp_path).replay.method == "python:no_such_module:Method"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_s_keys_make_a_configuration(name: str) -> None:
    config = load_config([BASE], [f"replay.method={name}"])
    assert type(choose_method(config)) is load_method(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "grpo",
            f"replay.method = 'grpo': choose {', '.join(METHODS)}, or python:module:Class",
        ),
        (
            "python:no_such_module:Method",
            "No module named 'no_such_module'; a module is looked for here and on the path",
        ),
        ("python:json:Method", "module 'json' has no attribute 'Method'"),
        ("python:json:JSONDecoder", "JSONDecoder is no subclass of rlep.methods.replay_method.ReplayMethod"),
        ("python:json", "choose rlep, live"),
    ],
)
def test_a_method_that_is_none_is_refused_where_the_configuration_is_read(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config([BASE], [f"replay.method={name}"])


def test_options_are_the_numbers_of_the_class() -> None:
    config = load_config([BASE], ["replay.method=exgrpo", "replay.options.start_accuracy=0.1"])
    method = choose_method(config)
    assert isinstance(method, ExGrpo)
    assert (method.start_accuracy, method.ratio, ExGrpo.start_accuracy) == (0.1, 0.5, 0.35)
    with pytest.raises(ConfigError, match=r"replay\.options\.start: ExGrpo has bucket_mean, bucket_std, ratio, retire"):
        choose_method(load_config([BASE], ["replay.method=exgrpo", "replay.options.start=0.1"]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["replay.method=exgrpo", "rollout.max_staleness=1", TIS, *RECOMPUTED],
            "later steps' prompts",
        ),
        ([f"replay.method={LATE}", "replay.group=replace"], "only after all G responses are generated"),
        (["replay.method=exgrpo", "replay.source=offline", *RECOMPUTED], 'set replay.source to "live" or "both"'),
        (["replay.method=exgrpo", "rollout.prompts=1", "update.prompts=1"], r"a share of 0\.5 of them is no prompt"),
        (
            ["replay.method=exgrpo", "replay.require=true", "replay.source=both"],
            "which leaves prompts of a step without replays",
        ),
        (["replay.method=exgrpo", "replay.options.ratio=1.5"], "ratio must be between 0 and 1"),
        (["replay.method=exgrpo", "replay.options.bucket_std=0"], "bucket_std above 0"),
        (["replay.method=exgrpo", "replay.options.start_accuracy=35"], "shares from 0 to 1"),
    ],
)
def test_decisions_that_cannot_be_carried_out_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_method(load_config([BASE], overrides))


def test_exgrpo_starts_at_its_accuracy_and_retires_what_is_solved() -> None:
    method = ExGrpo(seed=3, fresh=4)
    batch, stored = ["a", "b", "c", "d"], {"a": 1, "c": 1, "x": 2, "y": 1}
    method.learn(0, [Visit(name, 9, correct, 4) for name, correct in (("a", 0), ("c", 1), ("x", 2), ("y", 2))])
    assert method.questions(1, batch, stored) == batch  # 5 of 16 responses correct, 35 % are 5.6
    assert method.with_replays(1, batch) == []
    method.learn(1, [Visit("x", 9, 2, 4), Visit("y", 9, 4, 4)])
    chosen = method.questions(2, batch, stored)
    assert chosen[:2] == ["a", "b"]
    assert sorted(chosen[2:]) == ["c", "x"]  # y is solved, a is there already
    assert sorted(method.with_replays(2, chosen)) == ["c", "x"]
    assert method.learn(2, [Visit("y", 9, 3, 4)]) == {"live/retired": 0}
    continued = ExGrpo(seed=3, fresh=4)
    continued.restore(method.state())
    assert [continued.questions(step, batch, stored) for step in range(9)] == [
        method.questions(step, batch, stored) for step in range(9)
    ]


class Twice(ReplayMethod):
    """Asks one question twice."""

    def questions(self, step: int, batch: object, stored: object) -> list[str]:
        return [TRAIN.prompts[0].id] * 4


async def test_questions_that_are_not_as_many_are_refused(tmp_path: Path) -> None:
    config = live_config(replay={"method": "python:tests.unit.driver.test_replay_methods:Twice", "source": "live"})
    with pytest.raises(ConfigError, match=r"step 0 returned 1 different training prompts, a step takes 4"):
        await trained(tmp_path, config, {})


async def test_a_chosen_response_is_drawn_from_all_that_are_stored(tmp_path: Path) -> None:
    config = live_config(
        run={"steps": 8}, replay={"method": "python:tests.unit.driver.test_replay_methods:Oldest", "per_question": 4}
    )
    await trained(tmp_path, config, {})
    ages = [
        line["metrics"]["replay/age"]
        for line in read_lines(tmp_path / "metrics.jsonl")
        if "replay/age" in line["metrics"]
    ]
    newest = tmp_path / "newest"
    await trained(
        newest, live_config(run={"steps": 8}, replay={"selection": "newest", "per_question": 4, "count": 1}), {}
    )
    young = [
        line["metrics"]["replay/age"]
        for line in read_lines(newest / "metrics.jsonl")
        if "replay/age" in line["metrics"]
    ]
    assert np.mean(ages) > np.mean(young) + 0.5


class Oldest(ReplayMethod):
    """Replays the oldest success."""

    replays = {"source": "live", "count": 1, "minimum": 1}

    def choose(self, step, prompt_id, stored, count):  # type: ignore[no-untyped-def]
        return sorted(stored, key=lambda member: (member.birth, member.content_id))[:count]
