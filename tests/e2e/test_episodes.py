"""Episodes on real parts: a policy that may answer twice is trained with live replay of its episodes, is killed and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlep.check.finding import Finding
from rlep.config.settings import load_config
from rlep.core.jsonl import read_lines
from rlep.launch.try_episode import try_episode
from rlep.quickstart.toy_tokenizer import EOS, SEP
from tests.small import BASE, FRESH, PROMPTS, options, rlep, small_task

GAMES = '''
import re


class SecondChance:
    """A wrong answer is asked again."""

    def reset(self, reward_model: dict, **row: object) -> None:
        self._reference, self._right = reward_model["ground_truth"], False

    def step(self, text: str) -> str | None:
        """Look at an answer.

        Args:
            text: The answer.
        """
        found = re.findall(r"boxed{(\\d+)}", text)
        self._right = found[-1:] == [self._reference]
        return None if self._right else ". How many?"

    def get_reward(self) -> float:
        return float(self._right)


class Once:
    """An answer is an answer: the verifier grades it."""

    def reset(self, **row: object) -> None:
        pass

    def step(self, text: str) -> str | None:
        """End.

        Args:
            text: The answer.
        """
        return None


class Broken:
    """Its games never get anywhere."""

    def reset(self, **row: object) -> None:
        pass

    def step(self, text: str) -> str | None:
        """Fail.

        Args:
            text: The answer.
        """
        raise OSError("the board is gone")
'''
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<sep>{{ message['content'] }}<eos>"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)
LIVE = ['replay.source="live"', "replay.count=2", "replay.minimum=1"]


@dataclass(frozen=True)
class Games:
    """A task whose responses may be episodes."""

    home: Path
    overrides: list[str]

    def train(self, name: str, *more: str, check: bool = True) -> Any:
        """Train in a run directory of this name."""
        directory = [f'run.directory="{self.home / name}"', f"run.name={name}", *more]
        return rlep("train", BASE, *options([*self.overrides, *directory]), check=check, PYTHONPATH=str(self.home))

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """Each step's, without what a clock, a device or the number of this process's lives says."""
        left_out = (
            "time/",
            "rollout/tokens_per_second",
            "update/tokens_per",
            "update/flop",
            "update/peak",
            "verifier/",
        )
        return [
            {
                key: value
                for key, value in line["metrics"].items()
                if not key.startswith((*left_out, "actors/", "generator/"))
            }
            for line in read_lines(self.home / name / "metrics.jsonl")
        ]

    def rows(self, name: str, step: int) -> list[dict[str, Any]]:
        """Texts and tokens of a step's trajectories."""
        found: list[dict[str, Any]] = pq.read_table(
            self.home / name / "rollouts" / f"step-{step:06d}.tokens.parquet"
        ).to_pylist()
        return found


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Games:
    home = tmp_path_factory.mktemp("games")
    (home / "games.py").write_text(GAMES)
    (home / "game.jinja").write_text(TEMPLATE)
    return Games(
        home, [*small_task(home, train=PROMPTS), "data.evaluation=[]", f'model.template_file="{home / "game.jinja"}"']
    )


def chance(*more: str) -> list[str]:
    return [
        'environment.factory="games:SecondChance"',
        "environment.turns=2",
        "environment.observation_tokens=8",
        *LIVE,
        *more,
    ]


def turns_of(sampled: Sequence[bool] | None) -> int:
    """Runs of tokens that the policy sampled."""
    return 1 if sampled is None else 1 + int((np.diff(np.array(sampled, dtype=np.int8)) == 1).sum())


def test_an_episode_is_tried_before_a_run(games: Games, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(games.home))
    monkeypatch.syspath_prepend(games.home)
    begun: list[str] = []

    def tried(*more: str) -> Finding:
        config = load_config([Path(BASE)], [*games.overrides, *more])
        (found,) = try_episode(config, begun.append)
        return found

    played = tried(*chance())
    assert (played.level, played.what) == ("ok", "episode"), played
    head, *lines = played.detail.split("\n")
    assert head.startswith("4 episodes of the first question: ")
    assert head.endswith(". The one with the most turns:")
    kinds = [line.split()[0] for line in lines if line[:8].strip()]
    assert kinds.count("turn") == 1 + kinds.count("answer") == 2, (
        "a wrong answer is asked again, and one in ten is right"
    )
    assert "  answer . How many?" in lines
    broken = tried('environment.factory="games:Broken"', "environment.turns=2", "environment.observation_tokens=8")
    assert broken.level == "wrong"
    assert broken.detail.startswith("an episode is crashed: ")
    assert "the board is gone" in broken.detail.split("\n")[0]
    assert begun == ["episode", "episode"]
    assert list(try_episode(load_config([Path(BASE)], games.overrides), begun.append)) == [], (
        "no environment, no episode"
    )


def test_a_policy_learns_from_its_episodes_and_replays_them(games: Games) -> None:
    games.train("whole", *chance())
    lines = games.metrics("whole")
    assert len(lines) == 3
    for metrics in lines:
        assert 1 < metrics["episode/turns"] <= 2
        assert metrics["episode/failed"] == metrics["episode/tool_errors"] == metrics["episode/cut"] == 0
        assert metrics["loss/tokens/fresh"] == metrics["rollout/tokens"]
    assert lines[-1]["live/responses"] > 0, "of about 96 answers, one in ten is right"
    assert lines[-1]["replay/live"] == lines[-1]["replay/trajectories"] > 0
    rows = [row for step in range(3) for row in games.rows("whole", step)]
    several = [row for row in rows if turns_of(row["sampled"]) == 2]
    assert several
    for row in several:
        tokens, sampled = np.array(row["token_ids"]), np.array(row["sampled"])
        asked = tokens[~sampled].tolist()
        assert asked[-1] == SEP, "what begins the next turn"
        first = int(np.flatnonzero(~sampled)[0])
        assert tokens[first - 1] == EOS, "a turn ends by itself, and its EOS is not written again"
        assert EOS not in asked
        logprobs = np.array(row["sampler_logprobs"], dtype=np.float32)
        assert not logprobs[~sampled].any()
        if row["member"] < FRESH:  # an older policy sampled a replay
            assert np.abs(np.array(row["logprobs"], dtype=np.float32) - logprobs)[sampled].max() < 0.02


def test_a_run_that_is_continued_plays_the_same_episodes(games: Games) -> None:
    games.train("parts", *chance("run.steps=1"))
    games.train("parts", *chance("run.steps=3"))
    assert games.metrics("parts") == games.metrics("whole")


def test_an_episode_of_one_turn_is_the_response_without_an_environment(games: Games) -> None:
    games.train("without", "run.steps=1")
    games.train("once", "run.steps=1", 'environment.factory="games:Once"', "environment.observation_tokens=8")
    kept = ("token_ids", "sampler_logprobs", "logprobs", "text", "sampled")
    one, other = [
        sorted([[row[key] for key in kept] for row in games.rows(name, 0)], key=str) for name in ("without", "once")
    ]
    assert len(one) == PROMPTS * FRESH
    assert one == other
    first, second = games.metrics("without")[0], games.metrics("once")[0]
    assert {key: second[key] for key in first} == first
    assert second["episode/turns"] == 1


def test_a_run_whose_environment_always_fails_says_why(games: Games) -> None:
    done = games.train("broken", 'environment.factory="games:Broken"', "environment.observation_tokens=8", check=False)
    assert done.returncode
    said = " ".join((done.stdout + done.stderr).split())
    assert "environment.factory = games:Broken decided on none of 16 responses (16 crashed)" in said
    assert "the board is gone" in said
