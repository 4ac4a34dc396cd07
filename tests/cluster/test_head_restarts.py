"""With an external Redis Ray's head may die: actors at work go on, and new ones are placed once it is back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rlep.engines.rendezvous import listen
from rlep.services.pool.embedded.redis_process import find_binary

ROOT = Path(__file__).parents[2]


def test_actors_at_work_go_on_without_the_head_and_new_ones_come_when_it_is_back(tmp_path: Path) -> None:
    with listen("127.0.0.1") as free:
        port = str(free.getsockname()[1])
    redis = [str(find_binary()), "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    command = [sys.executable, "-m", "tests.cluster.head_restarts", str(tmp_path), port]
    with (tmp_path / "redis.log").open("w") as log, subprocess.Popen(redis, stdout=log, stderr=log) as store:
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
        finally:
            store.terminate()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["before"] == found["without"] == found["after"] == ["correct", "wrong"]
    assert found["events"] == ["actor_started", "actor_lost", "actor_restarted"]
