"""``TrlReplay`` in two processes of a training, over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlep.core.types import prompt_id_of
from rlep.integrations.trl import TrlReplay
from tests.services.integrations import trl_ranks
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_scene import fill, own_environment, solutions, trained


def ranks(output: Path, **settings: Any) -> list[dict[str, Any]]:
    """What each of two processes saw."""
    output.mkdir()
    (output / "settings.json").write_text(json.dumps({"output": str(output), **settings}))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, trl_ranks.__file__, str(output / "settings.json")]
    done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((output / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def by_step(name: str, *seen: dict[str, Any]) -> dict[int, list[Any]]:
    """What all processes together have of each step, in the order of the rows."""
    found: dict[int, list[Any]] = {}
    for one in seen:
        for step, rows in one[name].items():
            found.setdefault(int(step), []).extend(tuple(row) if isinstance(row, list) else row for row in rows)
    return found


@pytest.mark.parametrize("rows", [8, 4], ids=["whole groups", "a group over two processes"])
def test_two_processes_draw_what_one_draws(pool_of: OpenPool, served: str, tmp_path: Path, rows: int) -> None:
    """With 4 rows the second process has the places of replays alone."""
    with pool_of() as pool:
        fill(pool, solutions(5))
    replay: dict[str, Any] = {"source": "offline", "count": 2}
    alone = trained(tmp_path / "one", TrlReplay(pool_of(), **replay), per_device_train_batch_size=rows)
    given = {"per_device_train_batch_size": rows // 2}
    both = ranks(tmp_path / "two", address=served, pool=pool_of().name, replay=replay, given=given)
    assert by_step("prompts", *both) == alone.prompts
    assert by_step("drawn", *both) == alone.drawn
    assert [len(found) for found in alone.drawn.values()] == [rows // 2] * 4
    assert [line["replay/rows"] for line in both[0]["log"]] == [rows / 2] * 4  # of both together


def test_two_processes_fill_one_pool(pool_of: OpenPool, served: str, tmp_path: Path) -> None:
    given = {"per_device_train_batch_size": 4, "max_steps": 8, "logging_steps": 4}
    pool = pool_of()
    both = ranks(tmp_path / "two", address=served, pool=pool.name, replay={"count": 2}, given=given)
    births = {member.content_id: member.provenance.policy_version for member in pool.export()}
    assert sum(line["replay/stored"] for line in both[0]["log"]) == len(births) > 0
    drawn = by_step("drawn", *both)
    assert all(births[content_id] < step for step, rows in drawn.items() for _, content_id in rows)
    counted = [float(sum(len(drawn[step]) for step in steps)) for steps in (range(4), range(4, 8))]
    assert [line["replay/rows"] for line in both[0]["log"]] == counted
    assert sum(counted) > 0
    ages = [step - births[content_id] for step, rows in drawn.items() for _, content_id in rows]
    logged = sum(line["replay/age"] * line["replay/live"] for line in both[0]["log"] if line["replay/live"])
    assert logged == pytest.approx(sum(ages))


def test_nothing_is_kept_before_the_main_process_has_begun(pool_of: OpenPool, served: str, tmp_path: Path) -> None:
    """The server comes just after the main process has asked, and just before the other one does."""
    given = {"per_device_train_batch_size": 4, "max_steps": 8}
    pool = pool_of()
    both = ranks(tmp_path / "two", address=served, pool=pool.name, replay={"count": 2}, given=given, late=4)
    lost, stored = ([line[f"replay/{name}"] for line in both[0]["log"]] for name in ("lost", "stored"))
    assert (sum(lost[:4]) > 0, sum(lost[4:]), sum(stored[:4]), sum(stored[4:]) > 0) == (True, 0, 0, True)
    assert all(int(version.rpartition("@")[2]) >= 4 for version in pool.stats().by_policy)


def test_two_processes_ask_vllm_for_equally_many_responses(pool_of: OpenPool, served: str, tmp_path: Path) -> None:
    """TRL cuts what vLLM generated for all processes into equal parts; two of the four questions have stored responses."""
    stored = dict([*solutions(2).items()][:2])
    with pool_of() as pool:
        fill(pool, stored)
    replay, given = {"source": "offline", "count": 2}, {"per_device_train_batch_size": 4, "max_steps": 6}
    both = ranks(tmp_path / "two", address=served, pool=pool_of().name, replay=replay, given=given, engine=True)
    assert both[0]["calls"] == both[1]["calls"]
    replayed = [
        [prompt_id_of(one["prompts"][step][0], "") in stored for one in both] for step in map(str, range(6))
    ]  # a process has one group
    assert both[0]["calls"] == [[2, 1] if all(groups) else [4, 4] for groups in replayed]
    assert {sum(groups) for groups in replayed} >= {1}
    drawn = by_step("drawn", *both)
    assert [len(drawn[step]) for step in range(6)] == [2 * sum(groups) for groups in replayed]
