"""The shipped Slurm script, run for real on one node: only ``srun`` and ``scontrol`` are stand-ins that act locally."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/rlep.sbatch"
COMMANDS = {
    # As Slurm does, it gives a step one CPU unless it is told more.
    "srun": """#!/bin/bash
cpus=1
while [[ $1 == --* ]]; do
    if [[ $1 == --cpus-per-task=* ]]; then cpus=${1#*=}; fi
    shift
done
[[ $1 == rm || $cpus == "$SLURM_CPUS_PER_TASK" ]] || { echo "$1 on $cpus CPU" >&2; exit 1; }
exec "$@"
""",
    "scontrol": "#!/bin/bash\necho 127.0.0.1\n",
}
PREPARED = Path(f"/tmp/rlep-{os.getpid()}")
"""Directory of the job's number alone, which any user of the node could make first."""


def kept() -> list[Path]:
    """The directories that jobs of this test have made for Ray."""
    return sorted(PREPARED.parent.glob(f"{PREPARED.name}-*"))


# Stands where the rlep command stands: joins as it does, and says what it found.
PROGRAM = """#!{python}
import os, stat, sys
import ray
ray.init(address="auto", log_to_driver=False, logging_level="error")
node, = ray.nodes()
token = os.environ["RAY_AUTH_TOKEN_PATH"]
print("arguments", *sys.argv[1:], flush=True)
print("role", node["Labels"]["rlep-role"], "cpus", node["Resources"]["CPU"], flush=True)
print("auth", os.environ["RAY_AUTH_MODE"], oct(stat.S_IMODE(os.stat(token).st_mode)), len(open(token).read()), flush=True)
if "wait" in sys.argv:
    import signal
    def stop(*_):
        print("saved before the end", flush=True)
        sys.exit(5)
    signal.signal(signal.SIGTERM, stop)
    print("waiting", flush=True)
    signal.pause()
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def submitted(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a job on one node, in a repository of its own."""
    for name, text in COMMANDS.items():
        executable(tmp_path / "slurm" / name, text)
    executable(tmp_path / ".venv/bin/rlep", PROGRAM.format(python=sys.executable))
    executable(tmp_path / ".venv/bin/python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    executable(tmp_path / ".venv/bin/ray", f"#!{sys.executable}\nfrom ray.scripts.scripts import main\nmain()\n")
    yield os.environ | {
        "PATH": f"{tmp_path / 'slurm'}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1]",
        "SLURM_CPUS_PER_TASK": "2",
    }
    for directory in (PREPARED, *kept()):
        shutil.rmtree(directory, ignore_errors=True)


def test_a_job_runs_its_command_on_a_private_cluster_and_cleans_up(submitted: dict[str, str], tmp_path: Path) -> None:
    job = subprocess.run(
        ["bash", SCRIPT, "train", "a.toml"], env=submitted, capture_output=True, text=True, check=False
    )
    assert job.returncode == 0, job.stderr + job.stdout
    assert job.stdout.splitlines()[-3:] == [
        "arguments train a.toml --set cluster.address=auto",
        "role learner cpus 2.0",
        "auth token 0o600 64",
    ]
    assert list(tmp_path.glob(".rlep-*")) == []
    assert kept() == []


def test_at_the_time_limit_the_command_is_told_and_waited_for(submitted: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    PREPARED.mkdir()
    PREPARED.chmod(0o777)
    with log.open("w") as out:
        job = subprocess.Popen(["bash", SCRIPT, "wait"], env=submitted, stdout=out, stderr=subprocess.STDOUT)
    wait_until(lambda: "waiting" in log.read_text() or job.poll() is not None, "the command to run")
    assert job.poll() is None, log.read_text()
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert log.read_text().splitlines()[-2] == "saved before the end"
    [logs] = kept()
    assert list(logs.glob("r/session_*/logs"))  # kept, to see what went wrong
    assert (logs.stat().st_mode & 0o777, [*PREPARED.iterdir()]) == (0o700, [])
    assert list(tmp_path.glob(".rlep-*")) == []


def test_without_a_command_it_says_how_it_is_used(submitted: dict[str, str]) -> None:
    job = subprocess.run(["bash", SCRIPT], env=submitted, capture_output=True, text=True, check=False)
    assert job.returncode == 2
    assert job.stderr.startswith("usage: sbatch ")
