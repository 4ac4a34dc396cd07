"""``RlepReplayBuffer`` in verl 0.9.1's own trainer, which needs an environment of its own: see ``verl_program.py``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_installed_wheel import ROOT, look_for_registry, made, registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VERL = ("verl==0.9.1", "TransferQueue==0.1.11", "ray[default]==2.60.0", "cachetools", "uvicorn", "fastapi")
"""The last three are imported by verl, which does not require them."""
CLIENT = ("grpcio", "protobuf", "zstandard", "pydantic", "msgspec", "typer")
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with verl, torch for CPUs and what rlep's client needs."""
    look_for_registry()
    environment = made(tmp_path_factory.mktemp("verl"))
    (torch,) = set(re.findall(r"^torch==\S+", (ROOT / "requirements/cpu.txt").read_text(), re.M))
    where = [] if "UV_FIND_LINKS" in os.environ | registry() else ["--torch-backend", "cpu"]
    environment.install(*where, torch, *VERL, *CLIENT)
    (packages,) = (environment.place / "lib").glob("python*/site-packages")
    shutil.rmtree(packages / "tests")  # TransferQueue's own, which would hide these
    return environment.place / "bin/python"


@pytest.fixture(scope="module")
def seen(python: Path, served: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What the program saw, in minutes: verl takes half of one to be imported, in each process."""
    home = tmp_path_factory.mktemp("seen")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    plugged = {
        "PYTHONPATH": str(ROOT),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "tests.services.integrations.verl_cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for this one, and for no CPU
        "VERL_ENGINE_VENDOR": "nvidia",
    }
    command = [str(python), "-W", "ignore", "-m", "tests.services.integrations.verl_program", str(home), served]
    done = subprocess.run(
        command, cwd=ROOT, env=own | plugged, capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: Seen = json.loads((home / "seen.json").read_text())
    return found


def by_group(step: Seen) -> list[list[Seen]]:
    """The rows of each group, without those that pad."""
    groups: dict[str, list[Seen]] = {}
    for key, row in step["rows"].items():
        if not row["padding"]:
            groups.setdefault(key.split("_")[0], []).append(row)
    return list(groups.values())


def test_with_an_empty_pool_a_training_is_verls_to_the_bit(seen: Seen) -> None:
    def of(training: str) -> list[Any]:
        return [
            (
                sorted(row["old_log_probs"] for row in step["rows"].values()),
                {
                    name: step["metrics"][f"actor/{name}"]
                    for name in ("pg_loss", "grad_norm", "entropy", "ppo_kl", "lr")
                },
                step["size"],
                len(step["norms"]),
            )
            for step in seen[training]
        ]

    assert of("plain") == of("empty")
    assert len(seen["plain"]) == 3
    assert [step["metrics"]["actor/pg_loss"] for step in seen["plain"]] != [0.0] * 3
    assert [step["metrics"]["replay/empty"] for step in seen["empty"]] == [16.0] * 3


def test_verls_trainer_replays_what_it_stored_and_keeps_its_updates(seen: Seen) -> None:
    """16 questions in groups of 4, 4 questions an update: 64 rows, with a replay each 80, in mini-batches of 16 five updates."""
    first, *later = seen["filled"]
    assert (len(first["norms"]), first["size"], len(first["rows"])) == (4, 4, 64)
    for step in later:
        assert (len(step["norms"]), step["size"], len(step["rows"])) == (4, 5, 80)
        assert all(Counter(row["replay"] for row in group) == {False: 4, True: 1} for group in by_group(step))
    counts = [{name: step["metrics"][f"replay/{name}"] for name in ("rows", "stored", "duplicates")} for step in later]
    assert counts == [{"rows": 16.0, "stored": 0.0, "duplicates": 16.0}] * 2
    assert first["metrics"]["replay/stored"] == 16.0
    assert [step["metrics"]["replay/age"] for step in later] == [1.0, 2.0]


def test_each_update_has_its_groups_whole_with_their_replays(seen: Seen) -> None:
    for step in seen["filled"][1:]:
        for keys in step["cut"]:
            assert [*Counter(key.split("_")[0] for key in keys).values()] == [5] * 4
            assert sum(step["rows"][key]["replay"] for key in keys) == 4


def test_padding_is_spread_over_the_updates_and_changes_nothing(seen: Seen) -> None:
    """In micro-batches of 16 an update has 32 rows: 80 would fill two and a half, and pad the fourth alone."""
    for step in seen["padded"][1:]:
        assert (len(step["norms"]), step["size"], len(step["rows"])) == (4, 8, 128)
        for keys in step["cut"]:
            assert sum(step["rows"][key]["padding"] for key in keys) == 12
    # The first updates on one policy have the same gradient, computed in bfloat16 over tensors of other widths.
    padded, filled = (seen[name][1]["norms"][0] for name in ("padded", "filled"))
    assert padded == pytest.approx(filled, rel=0.01)


def test_groups_have_the_advantages_of_all_their_rows_and_log_probs_of_the_present_policy(seen: Seen) -> None:
    # Rewards 1, 0, 0, 0: mean 1/4, sample std 1/2. With a replay 1, 0, 0, 0, 1: mean 2/5, sample std √0.3.
    expected = [(1.5, -0.5), (0.6 / 0.3**0.5, -0.4 / 0.3**0.5), (0.6 / 0.3**0.5, -0.4 / 0.3**0.5)]
    for step, (right, wrong) in zip(seen["filled"], expected, strict=True):
        for group in by_group(step):
            for row in group:
                wanted = right if sum(row["rm_scores"]) == 1 else wrong
                assert row["advantages"] == pytest.approx([wanted] * len(row["responses"]), abs=1e-5)
    before: list[list[float]] = []
    for step in seen["filled"][1:]:
        # The right response is the same in each step, so that the replay has the tokens of a fresh one.
        pairs = [[row for row in group if sum(row["rm_scores"]) == 1] for group in by_group(step)]
        for one, other in pairs:
            assert one["responses"] == other["responses"]
            assert one["old_log_probs"] == pytest.approx(other["old_log_probs"], abs=1e-5)
        now = sorted(pair[0]["old_log_probs"] for pair in pairs)
        assert now != before
        before = now


def test_verls_worker_cuts_the_papers_rows_into_eight_updates(seen: Seen) -> None:
    assert seen["cut"] == [9, 8]  # 512 · 18 rows by 64 · 16, and by 72 · 16


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("divided", "ppo_mini_batch_size = 4 does not divide the 6 prompts of data.train_batch_size"),
        ("critic", "algorithm.adv_estimator = gae has a critic"),
        ("filtered", "algorithm.filter_groups.enable: verl leaves filtering to a custom sampler"),
        ("refilled", "trainer.v1.sampler.sync_refill_failed_groups: verl does not give it to a custom sampler"),
        ("compared", "actor_rollout_ref.rollout.calculate_log_probs = True: verl compares them with its own"),
        ("stood for nothing", "stored_logprobs = True with actor_rollout_ref.rollout.calculate_log_probs = False"),
        ("rewarded later", "set reward.reward_model.enable_resource_pool = True"),
        (
            "asynchronous",
            "trainer_mode = colocate_async: set trainer.v1.sampler.custom_sampler.name = RlepReplayBufferAsync",
        ),
        ("nothing", "replay.count = 0: nothing would be replayed"),
        ("unknown", "replay.cuont"),
        ("luffy", 'replay.method = "luffy"'),
        (
            "redis",
            "sampler_kwargs.pool.url = redis://127.0.0.1:1/0: give the address of a pool server, grpc://HOST:PORT",
        ),
        ("turns", "is an episode (response_mask leaves out 2 tokens), and nothing names the tools"),
        ("other tools", "this run's are episodes of environment verl:tool_agent:"),
        ("unrewarded", "rows have no rm_scores when they are sampled"),
        ("shared", "PoolError"),
        ("again", "responses of an earlier start of run run, and this one begins at step 0"),
        ("stopped", "DeadlineExceeded"),
        ("halved", "log-probs are not comparable (computed in bfloat16)"),
    ],
)
def test_what_would_not_be_what_it_seems_is_refused(seen: Seen, name: str, sentence: str) -> None:
    assert sentence in seen[name]


def test_groups_of_one_question_twice_have_keys_of_their_own(seen: Seen) -> None:
    """The right response has the same tokens in both steps: each question has one stored."""
    assert (seen["first"]["rows"], seen["first"]["replays"], seen["first"]["size"]) == (16, [[]] * 4, 1)
    groups = seen["second"]["replays"]  # 6, 6, 9, 21: the last was never asked
    assert [[session for session, *_ in group] for group in groups] == [[4], [4], [4], []]
    assert groups[0] == groups[1] != groups[2]
    assert groups[0][0][2] == [0.0, 1.0]  # the digit and the end, rewarded there
    # 19 rows in four updates of 8 rows, of which four are two prompts': 32 with 13 that pad, some in each.
    assert (seen["second"]["rows"], seen["second"]["padding"], seen["second"]["size"]) == (32, 13, 2)
    assert seen["second"]["updates"] == [5, 5, 5, 4]


def test_groups_of_which_responses_failed_get_replays_behind_those_that_are_there(seen: Seen) -> None:
    """Sessions 1 and 3 of two questions, and a third of which none came."""
    assert [[session for session, *_ in group] for group in seen["partial"]["replays"]] == [[4], [4], []]
    assert seen["partial"]["metrics"]["replay/rows"] == 2
    assert seen["partial"]["updates"] == [3, 3]  # of the three that are configured, none is for padding alone


def test_a_group_may_have_more_replays_than_fresh_responses(seen: Seen) -> None:
    many = seen["many"]  # all four responses of step 1 were successes, of six that were asked for
    assert [len(group) for group in many["replays"]] == [4] * 4
    assert (many["rows"], many["padding"], many["size"]) == (32, 0, 2)


def test_a_run_that_goes_on_removes_what_came_later_and_draws_the_same(seen: Seen) -> None:
    resumed, many = seen["resumed"], seen["many"]
    assert resumed["replays"] == many["replays"]
    assert (resumed["metrics"]["replay/stored"], resumed["metrics"]["replay/duplicates"]) == (16.0, 0.0)


def test_what_no_later_step_sees_is_removed(seen: Seen) -> None:
    """Of each of four questions the two newest stay, and what they were at a checkpoint: two of 4, 2 and 10 responses."""
    assert [step["metrics"]["replay/removed"] for step in seen["trimmed"]] == [4 * 2.0, 0.0, 4 * 8.0]


def test_the_asynchronous_buffer_draws_alike(seen: Seen) -> None:
    def contents(name: str) -> list[Any]:
        return [[row for _, *row in group] for group in seen[name]["replays"]]

    assert contents("asynchronous batch") == contents("many")  # whose rows have higher numbers of sessions


def test_a_server_that_is_away_leaves_verls_batch_and_validation_never_asks(seen: Seen) -> None:
    away = seen["away"]
    assert (away["rows"], away["replays"], away["metrics"]["replay/away"]) == (16, [[]] * 4, 1.0)
    assert away["metrics"]["replay/lost"] == 4.0
    assert seen["stopped validation"] == 16
    assert (seen["validation"]["rows"], seen["validation"]["metrics"]) == (16, {})


def test_a_training_of_one_pass_is_told_that_nothing_comes_back(seen: Seen) -> None:
    (warning,) = seen["once"]
    assert warning.startswith("no question comes twice in these 1 steps: nothing will be replayed but what other runs")
    assert seen["twice"] == []


def test_rewards_decide_which_groups_get_replays(seen: Seen) -> None:
    """``only_below = 0.2``: one of four is right in four groups, none of two in the fifth."""
    assert [len(group) for group in seen["late"]["replays"]] == [0, 0, 0, 0, 1]
    assert seen["late"]["metrics"]["replay/rows"] == 1


def test_stored_log_probs_stand_for_the_samplers_where_they_are_comparable(seen: Seen) -> None:
    ((_, _, _, logprobs),) = seen["stored"]["replays"][0]
    assert logprobs == [-0.25, -0.5]


def test_replays_have_positions_on_each_axis_of_their_group(seen: Seen) -> None:
    """A processor of images has four for text, too, alike."""
    for ((*_, positions),) in seen["rope"]["replays"]:
        assert positions == [[*range(len(positions[0]))]] * 4


def test_an_episode_is_replayed_with_its_mask(seen: Seen) -> None:
    """Two turns of the policy, between them two tokens of a tool."""
    (row,) = seen["episodes"]["replays"][0]
    _, tokens, scores, mask, loss_mask = row
    assert (tokens, mask, loss_mask) == ([7, 1, 8, 2, 1], [1, 1, 0, 0, 1], [1, 1, 0, 0, 1])
    assert scores == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert seen["episodes"]["metrics"]["replay/duplicates"] == 1.0


def test_the_pages_settings_are_taken(seen: Seen) -> None:
    assert seen["page"] == ["RlepReplayBuffer", 2, "countdown", 64]
