"""``TrlReplay`` in two processes of a training, over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlep.integrations.trl import TrlReplay
from tests.services.integrations import trl_ranks
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_scene import fill, own_environment, solutions, trained


@pytest.fixture(autouse=True)
def _hook_is_experimental(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


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
    given = {"per_device_train_batch_size": 4, "max_steps": 8}
    pool = pool_of()
    both = ranks(tmp_path / "two", address=served, pool=pool.name, replay={"count": 2}, given=given)
    births = {member.content_id: member.provenance.policy_version for member in pool.export()}
    assert sum(line["replay/stored"] for line in both[0]["log"]) == len(births) > 0
    drawn = by_step("drawn", *both)
    assert all(births[content_id] < step for step, rows in drawn.items() for _, content_id in rows)
    assert [line["replay/rows"] for line in both[0]["log"]] == [float(len(drawn[step])) for step in sorted(drawn)]
    assert sum(map(len, drawn.values())) > 0
