"""Code of the user that runs a policy's text: no worker of any kind reaches its parent, another process or a file."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlep.config.environment import EnvironmentConfig
from rlep.config.roles import VerifierConfig
from rlep.config.settings import section_of
from rlep.core.episodes import ToolCall
from rlep.core.errors import ConfigError
from rlep.services.environment.local import LocalEnvironments
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.user_function import FunctionVerifier
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker import frames
from rlep.services.worker.confinement import MACHINES, Kind, assembled, missing_layers
from rlep.services.worker.jail import Limits
from tests.services.verifier.reaching_functions import FRAMES, REACHING, framed

pytestmark = pytest.mark.skipif(bool(missing_layers()), reason=f"no {missing_layers()}")


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def victim() -> Iterator[int]:
    """Another process of this user, which has to live on."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.poll() is None
        process.communicate(b"\n")
        assert process.returncode == 0


@asynccontextmanager
async def playing(**keys: Any) -> AsyncIterator[LocalEnvironments]:
    """Environments whose tools attack."""
    config = EnvironmentConfig(factory="reaching_functions:Forger", **{"cpu_seconds": 20, **keys})
    environments = LocalEnvironments(config, idle_s=600)
    await environments.start()
    try:
        yield environments
    finally:
        environments.close()


def answer(verifier: FunctionVerifier, reference: object, response: object) -> object:
    (verdict,) = verifier.grade(json.dumps(reference), [json.dumps(response)], [False])
    assert verdict.extracted is not None, verdict.reason
    return json.loads(verdict.extracted)


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("parent", [False, True])
def test_a_function_reaches_no_process_and_no_file(victim: int, tmp_path: Path, network: bool, parent: bool) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "file.other").write_text("")
    (tmp_path / "empty").mkdir()
    before = file.stat()
    limits = Limits(cpu_seconds=20, network=network, memory_mb=4096)
    with FunctionVerifier("python:reaching_functions:reach", limits=limits) as verifier:
        reached = answer(verifier, [os.getpid() if parent else victim, str(file)], [*REACHING])
    assert reached == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "file.other"]
    after = file.stat()
    assert file.read_text() == "kept"
    assert (after.st_mtime_ns, stat.S_IMODE(after.st_mode)) == (before.st_mtime_ns, stat.S_IMODE(before.st_mode))
    assert not Path("/dev/shm/rlep-reached").exists()


@pytest.mark.parametrize("network", [False, True])
async def test_a_tool_reaches_no_process_and_no_file(victim: int, tmp_path: Path, network: bool) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.other").write_text("")
    async with playing(network=network) as environments:
        await environments.begin("e", "", seed=0)
        call = ToolCall("reach", json.dumps({"victim": victim, "path": str(file)}))
        (said,) = (await environments.act("e", [call])).texts
    assert said == "{}"
    assert file.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "file.other"]


@pytest.mark.parametrize("frame", FRAMES)
def test_what_is_no_answer_loses_the_worker_at_once_and_not_the_run(frame: str) -> None:
    endless = Limits(cpu_seconds=10_000, wall_seconds=100_000)
    with FunctionVerifier("python:reaching_functions:forges", limits=endless) as verifier:
        found = verifier.grade("x", ["x", frame, "y"], [False] * 3)
    assert [verdict.status for verdict in found] == ["correct", "crashed", "wrong"]


@pytest.mark.parametrize("frame", FRAMES)
async def test_what_is_no_answer_to_a_call_loses_its_process_at_once(frame: str) -> None:
    async with playing(deadline_s=100_000, cpu_seconds=10_000) as environments:
        await environments.begin("bad", "", seed=0)
        found = await environments.act("bad", [ToolCall("act", json.dumps({"name": frame}))])
        assert found.status == "crashed"
        assert (await environments.begin("next", "", seed=0)).status == "open"
        (said,) = (await environments.act("next", [ToolCall("variables", '{"names": []}')])).texts
        assert said == "[]"


def test_a_job_cannot_answer_the_next_batchs_jobs() -> None:
    pool = WorkerPool("reaching_functions:answers_ahead", Limits(cpu_seconds=10_000), 1)
    try:
        assert [reply.status for reply in pool.grade([GradingJob("x", "ahead")])] == ["wrong"]
        assert [reply.status for reply in pool.grade([GradingJob("x", "y")])] == ["wrong"]
    finally:
        pool.close()


@pytest.mark.parametrize("body", [b"[" + b"[]," * 5_000_000 + b"[]]", b"[" * 10_000_000, b'{"a":' * 3_000_000])
def test_a_frame_of_many_values_takes_no_more_memory_than_its_bytes(body: bytes) -> None:
    buffer = bytearray(framed(body))
    tracemalloc.start()
    try:
        with pytest.raises(frames.FrameError, match="more than 10000 values"):
            frames.take(buffer)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(body)
    finally:
        tracemalloc.stop()


def test_a_long_text_of_commas_is_a_single_value() -> None:
    message = ["correct", '"[,{' * 100_000, 0.5, "\\" * 11]
    assert frames.take(bytearray(frames.encode(message)))[0] == message


SECRETS = [
    *(
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
        "RLEP_JUDGE_TOKEN",
    ),
    *(
        "RLEP_POOL_TOKEN",
        "RLEP_REDIS_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_CLIENT_SECRET",
        "GITHUB_TOKEN",
        "MY_OWN",
    ),
    *("OPENAI_API_KEY", "MLFLOW_TRACKING_PASSWORD", "SSH_AUTH_SOCK", "GOOGLE_APPLICATION_CREDENTIALS", "REDISCLI_AUTH"),
]


@pytest.mark.parametrize("network", [False, True])
def test_a_function_sees_no_secret_but_a_variable_that_is_named(monkeypatch: pytest.MonkeyPatch, network: bool) -> None:
    for name in (*SECRETS, "HF_HOME", "https_proxy"):
        monkeypatch.setenv(name, "secret")
    profile = "python:reaching_functions:reports"
    config = VerifierConfig(profile=profile, network=network, variables=("MY_OWN",), cpu_seconds=20)
    with configured_verifier(config) as verifier:
        (verdict,) = verifier.grade("", [json.dumps([*SECRETS, "HF_HOME", "https_proxy"])], [False])
    assert json.loads(verdict.extracted or "") == ["MY_OWN", "HF_HOME", *(["https_proxy"] if network else [])]


async def test_a_tool_sees_no_secret_but_a_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    async with playing(variables=("MY_OWN",)) as environments:
        await environments.begin("e", "", seed=0)
        (said,) = (await environments.act("e", [ToolCall("variables", json.dumps({"names": SECRETS}))])).texts
    assert said == '["MY_OWN"]'


def test_the_math_workers_see_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("MY_OWN", "secret")
    before = psutil.Process().children(recursive=True)
    with configured_verifier(VerifierConfig()) as verifier:
        verifier.grade("x+1", ["\\boxed{1+x}"], [False])
        workers = [one for one in psutil.Process().children(recursive=True) if one not in before]
        assert len(workers) == 2
        assert not [one for one in workers if {"RAY_AUTH_TOKEN", "MY_OWN"} & one.environ().keys()]
    with pytest.raises(ConfigError, match=r"verifier\.variables = .*only a python:module:function sees variables"):
        section_of(VerifierConfig, "verifier", {"variables": ["MY_OWN"]})


def test_a_function_that_misses_a_variable_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN", "secret")
    with configured_verifier(VerifierConfig(profile="python:reaching_functions:misses")) as verifier:
        (verdict,) = verifier.grade("x", ["x"], [False])
    assert verdict.reason.startswith("KeyError: 'MY_OWN' (workers get no secrets: name ")
    assert "verifier.variables" in verdict.reason


@pytest.mark.parametrize("kind", ["program", "worker", "networked worker"])
def test_both_machines_have_every_refusal_of_signals(kind: Kind) -> None:
    calls = {
        "x86_64": {"kill": 62, "tgkill": 234, "process_vm_writev": 311},
        "aarch64": {"kill": 129, "tgkill": 131, "process_vm_writev": 271},
    }
    for machine in MACHINES:
        filtered = assembled(kind, machine, 1234)
        verdicts = {name: decided(filtered, MACHINES[machine][0], call, 1235) for name, call in calls[machine].items()}
        assert set(verdicts.values()) == {REFUSED}
        assert decided(filtered, MACHINES[machine][0], calls[machine]["tgkill"], 1234) == ALLOWED
        assert decided(filtered, 0x40000003, calls[machine]["tgkill"], 1234) == REFUSED  # the calls of 32 bits
        assert decided(filtered, MACHINES[machine][0], 0x40000000 | 39, 0) != ALLOWED  # x32


ALLOWED, REFUSED = 0x7FFF0000, 0x00050001


def decided(program: bytes, architecture: int, call: int, argument: int) -> int:
    """Run a filter, slowly, as linux/filter.h describes: load, jump if equal, greater or any bit, return."""
    steps, at, loaded = [*struct.iter_unpack("HBBI", program)], 0, 0
    data = {0: call, 4: architecture, 16: argument}
    while True:
        code, yes, no, value = steps[at]
        if code == 0x06:
            return int(value)
        met = {0x15: loaded == value, 0x25: loaded > value, 0x45: bool(loaded & value)}.get(code)
        loaded = data.get(value, 0) if met is None else loaded
        at += 1 + (0 if met is None else yes if met else no)
