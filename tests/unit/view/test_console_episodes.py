"""Episodes on the console's pages: turns, calls, answers, and files that lie about them."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.services.pool.rpc.served_census import PoolEntry
from rlep.view.episode import MOST_TURNS, episode_of
from rlep.view.pages import Query, evaluation, group
from rlep.view.pool_places import PoolPlaces
from rlep.view.prompt_page import prompt
from rlep.view.run_files import RunPlace
from rlep.view.templating import MOST_TEXT, rendered
from tests.unit.driver.driver_values import answer_of, prompts_of
from tests.unit.view.console_scene import ATTACK
from tests.unit.view.episode_scene import KINDS, SAMPLES, TEXTS, called, ends_of, episode, give_turns, rewrite
from tests.unit.view.page_checks import Found, assert_harmless

ADDED = episode(f"First $x^2$:\n{called('add', a=2, b='3')}", "5", "It is 5.")
SEARCHED = episode(called("search", code="one\ntwo"), "a line\nanother", "", "", "So 7.")


@pytest.fixture
def played(runs: Path, tmp_path: Path) -> RunPlace:
    """A run whose group 0 of step 1 is of episodes."""
    shutil.copytree(runs / "a", tmp_path / "a", ignore=shutil.ignore_patterns("checkpoints"))
    give_turns(tmp_path / "a", 0, [ADDED, SEARCHED])
    return RunPlace("a", tmp_path / "a")


def member(text: str, number: int) -> str:
    """The article of one member of a group."""
    return next(one for one in text.split("<article")[1:] if f"<h3>{number}: " in one).partition("</article>")[0]


def words(text: str) -> str:
    """What a reader sees, in one line."""
    return " ".join(re.sub("<[^>]*>", " ", text).split())


def test_a_group_shows_turns_calls_and_answers(played: RunPlace) -> None:
    first = member(group(played, 1, 0, Query()), 0)
    assert "2 turns, " in first
    assert " tokens and 3 of the environment, stop" in first
    turns = first.split('<section class="turn">')[1:]
    assert [words(one.partition("</section>")[0]) for one in turns] == [
        "Turn 1 3 tokens, then 3 of the environment First x 2 : calls add a 2 b 3 Environment: 5",
        "Turn 2 3 tokens It is 5.",
    ]
    assert "<msup>" in turns[0]
    assert "tool_response" not in "".join(turns).partition("Raw text")[0]
    raw = turns[-1].partition("Raw text; grey: the environment")[2].partition("</pre>")[0]
    marks = "\nuser\n&lt;tool_response&gt;\n5\n&lt;/tool_response&gt;\nassistant\n"
    assert f'<span class="unsampled">{marks}</span>It is 5.' in raw


def test_a_long_answer_is_folded_and_one_that_says_nothing_says_so(played: RunPlace) -> None:
    second = member(group(played, 1, 0, Query()), 1)
    assert '<summary>Environment: <span>a line …</span></summary><pre tabindex="0">a line\nanother</pre>' in second
    assert '<dt>code</dt><dd><pre tabindex="0">one\ntwo</pre></dd>' in second
    assert "No text." in second
    assert "Environment: nothing" in words(second)


def test_tokens_of_the_environment_are_grey_and_have_no_log_prob(played: RunPlace) -> None:
    first = member(group(played, 1, 0, Query()), 0)
    tokens = re.findall('<span class="([a-z0-9]+)" title="([^"]*)">([0-9]+)</span>', first)
    kinds = [("s2", "-0.5")] * 3 + [("unsampled", "the environment's")] * 3 + [("s2", "-0.5")] * 3
    assert tokens == [(*kind, str(at)) for at, kind in enumerate(kinds)]


def test_a_replayed_episode_stands_beside_fresh_ones(played: RunPlace) -> None:
    fresh, replays = group(played, 1, 0, Query()).split("<h2>Replays")
    assert (fresh.count("turns, "), replays.count("turns, ")) == (3, 2)


def test_evaluations_and_prompts_show_turns_too(played: RunPlace) -> None:
    asked = pq.read_table(played.directory / SAMPLES)["prompt_id"][0].as_py()
    text = evaluation(played, 2, asked, Query())
    assert "Turn 2 It is 5." in words(text)
    assert "<span>2 turns, " in text
    taught = next(row["prompt_id"] for row in pq.read_table(played.directory / TEXTS).to_pylist() if row["group"] == 0)
    assert "Turn 2 It is 5." in words(prompt(played, taught, PoolPlaces([], [])))


def test_files_of_older_versions_are_read_as_before(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a", ignore=shutil.ignore_patterns("checkpoints"))
    for name in (TEXTS, SAMPLES):
        table = pq.read_table(tmp_path / "a" / name)
        pq.write_table(table.drop_columns([one for one in KINDS if one in table.column_names]), tmp_path / "a" / name)
    text = group(RunPlace("a", tmp_path / "a"), 1, 0, Query())
    assert "Turn 1" not in text
    assert "unsampled" not in text
    assert "Tokens, darker where less probable</summary>" in text


def test_what_is_written_in_an_episode_is_text(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a", ignore=shutil.ignore_patterns("checkpoints"))
    attack = called(ATTACK, **{ATTACK: ATTACK, "list": [ATTACK]})
    give_turns(tmp_path / "a", 0, [episode(ATTACK + attack, ATTACK, attack, "\n", ATTACK)])
    place = RunPlace("a", tmp_path / "a")
    asked = pq.read_table(tmp_path / "a" / SAMPLES)["prompt_id"][0].as_py()
    for text in (group(place, 1, 0, Query()), evaluation(place, 2, asked, Query())):
        assert_harmless(text)
        assert "Turn 3" in text
        assert "calls <code>&lt;script&gt;alert(1)" in text


LIES = {
    "ends": [[], [None], [-5, 2], [2**31 - 1, 3], [9, 1, 9, 1], [1] * 100_000],
    "sampled": [[], [None], [False], [True] * 100_000, [True, False] * 50_000],
}


@pytest.mark.parametrize(("column", "lie"), [(name, lie) for name, lies in LIES.items() for lie in lies])
def test_a_file_that_lies_about_its_parts_is_shown(played: RunPlace, column: str, lie: list[object]) -> None:
    rows = pq.read_table(played.directory / TEXTS).to_pylist()
    rewrite(played.directory / TEXTS, [row | {column: lie} for row in rows])
    text = group(played, 1, 0, Query())
    assert "Turn 1" in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize("column", KINDS)
def test_a_column_of_another_kind_is_named(played: RunPlace, column: str) -> None:
    table = pq.read_table(played.directory / TEXTS)
    at = table.column_names.index(column)
    pq.write_table(table.set_column(at, column, pa.array(["x"] * len(table))), played.directory / TEXTS)
    assert f"{TEXTS}: {column} does not hold lists of " in group(played, 1, 0, Query())


def test_more_turns_than_a_page_shows_are_counted() -> None:
    parts = ["a", "b"] * (MOST_TURNS + 5)
    made = episode_of("".join(parts), ends_of(parts), [True, False] * (MOST_TURNS + 5))
    assert made is not None
    assert (len(made.turns), made.count, made.unsampled) == (MOST_TURNS, MOST_TURNS + 5, MOST_TURNS + 5)
    assert (made.turns[-1].turn.said, made.turns[-1].tokens) == (("a",), (1, 1))
    long = ["x" * MOST_TEXT, "b", "c"]
    cut = episode_of("".join(long), ends_of(long), None)
    assert cut is not None
    assert (len(cut.turns), cut.count) == (1, 2)


def test_a_pool_says_how_many_tokens_of_an_episode_are_the_policys() -> None:
    (one,) = prompts_of(1)
    plain, played = answer_of(one, 0, length=5), answer_of(one, 1, length=5)
    played = replace(played, sampled=np.array([True, False, False, True, True]))
    entries = [PoolEntry(each.content_id, each, quarantined=False) for each in (plain, played)]
    text = rendered("pool_prompt.html", number=0, pool="p", prompt=one.id, held=[("p", entries, 2)], notes=[])
    assert [row[2] for row in Found(text).rows[1:]] == ["5", "5, 3 of the policy"]
