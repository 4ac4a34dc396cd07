"""Findings on machines that this one is not: GPUs, drivers, RDMA, names, too little shared memory."""

from __future__ import annotations

import shutil
import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from rlep.actors.cluster import Cluster
from rlep.check import inputs, machine
from rlep.check.finding import Finding
from rlep.check.inputs import Subject
from rlep.check.suite import _make, findings
from rlep.config.roles import ClusterConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import PlacementError
from tests.unit.driver.test_plan import MATH_7B

MODEL = Path("rlep/quickstart/model").absolute()
OTHER = "set learner.dtype and generator.dtype, or take another GPU"
Usage = namedtuple("Usage", ["total", "used", "free"])
Memory = namedtuple("Memory", ["available"])


def found(config: Config, what: str) -> list[Finding]:
    """The findings of that name."""
    return [finding for finding in findings(config) if finding.what == what]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """One GPU, as ``nvidia-smi`` and the installed CUDA runtime describe it."""
    told = {"driver": "580.65.06", "capability": "9.0", "runtime": "13.0.96", "mib": "81559"}

    def smi(*words: str) -> list[str]:
        if words[0] == "--query-gpu=memory.total":
            return [told["mib"]]
        return ["GPU 0: H100"] if words == ("-L",) else [f"{told['driver']}, {told['capability']}, H100"]

    original = machine._version
    monkeypatch.setattr(machine, "_nvidia_smi", smi)
    monkeypatch.setattr(
        machine, "_version", lambda name: told["runtime"] if name == "nvidia-cuda-runtime" else original(name)
    )
    return told


@pytest.mark.parametrize(
    ("driver", "capability", "runtime", "level", "remedy"),
    [
        ("580.65.06", "9.0", "13.0.96", "ok", ""),
        ("575.57.08", "9.0", "13.0.96", "wrong", "CUDA 13.0.96 needs driver 580 or newer: update it"),
        ("575.57.08", "9.0", "12.8.90", "ok", ""),
        ("580.65.06", "7.5", "13.0.96", "wrong", f"bfloat16 needs 8.0: {OTHER}"),
    ],
)  # fmt: skip
def test_a_gpu_with_its_driver(
    gpu: dict[str, str], driver: str, capability: str, runtime: str, level: str, remedy: str
) -> None:
    gpu |= {"driver": driver, "capability": capability, "runtime": runtime}
    config = load_config([], ["learner.gpus=1", "generator.gpus=0"])
    (finding,) = found(config, "GPU 0")
    assert (finding.level, finding.remedy) == (level, remedy)
    assert finding.detail == f"H100, driver {driver}, compute capability {capability}"


def test_a_gpu_that_is_shared_is_counted_once(gpu: dict[str, str]) -> None:
    both = ["learner.gpus=1", "generator.gpus=1"]
    (finding,) = found(load_config([], [*both, "cluster.placement=colocated"]), "GPUs")
    assert (finding.level, finding.detail) == ("ok", "1 here, the actors ask for 1")
    (finding,) = found(load_config([], both), "GPUs")
    assert (finding.level, finding.detail) == ("wrong", "1 here, the actors ask for 2")


@pytest.mark.parametrize(("mib", "level"), [("81559", "ok"), ("2048", "wrong")])
def test_the_plan_is_held_against_the_gpu_that_is_here(gpu: dict[str, str], mib: str, level: str) -> None:
    gpu["mib"] = mib
    config = load_config([], ["learner.gpus=1", "generator.gpus=0", f"model.path={MODEL}"])
    (finding,) = found(config, "memory for the plan")
    assert finding.level == level
    assert ("a learner rank needs " in finding.detail) is (level == "wrong")


def test_what_ranks_keep_in_host_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "read_shape", lambda _: MATH_7B)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(64 * 2**30))
    config = load_config([Path("configs/rlep.toml"), Path("configs/machines/8x80gb.toml")])
    (finding,) = list(machine.host_memory(Subject(config)))
    assert finding.level == "wrong"
    assert finding.detail.endswith(
        "28.0 GiB for the engines without the model itself, and 10.6 GiB that each learner rank keeps there"
    )


@pytest.mark.parametrize(("gpus", "dtype", "noted"), [(1, "float32", True), (1, "auto", False), (0, "float32", False)])
def test_float32_on_gpus_is_slow_and_said(gpus: int, dtype: str, noted: bool) -> None:
    config = load_config([], [f"learner.gpus={gpus}", f"learner.dtype={dtype}"])
    assert [finding.level for finding in found(config, "learner.dtype")] == ["wrong"] * noted
    notes: list[str] = []
    _make(Subject(config), [machine.slow_type], notes.append)
    said = (
        "check: learner.dtype: float32 on GPUs: attention sequence by sequence, without flash kernels and tensor cores "
        "(learner.dtype = bfloat16; weights and moments stay float32)"
    )
    assert notes == [said] * noted


@pytest.mark.parametrize(("library", "level"), [("libibverbs.so.1", "ok"), (None, "wrong")])
def test_infiniband_needs_its_library(
    library: str | None, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx5_0").touch()
    monkeypatch.setattr(machine, "INFINIBAND", tmp_path)
    monkeypatch.setattr(machine, "find_library", lambda _: library)
    (finding,) = found(Config(), "RDMA")
    assert finding.level == level
    assert ("apt install libibverbs1 ibverbs-providers" in finding.remedy) is (library is None)


def test_a_machine_without_infiniband_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "INFINIBAND", tmp_path / "none")
    assert found(Config(), "RDMA") == []


@pytest.mark.parametrize(("address", "advised"), [("127.0.1.1", True), ("10.0.0.4", False)])
def test_on_a_cluster_the_hostname_is_not_loopback(
    address: str, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-3")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: address)
    monkeypatch.setattr(machine, "_output", lambda _: "Resources")
    (finding,) = found(load_config([], ["cluster.address=10.0.0.1:6379"]), "hostname")
    assert (finding.level, finding.detail) == ("ok", f"node-3 is {address}")
    assert bool(finding.remedy) is advised
    assert found(Config(), "hostname") == []


@pytest.mark.parametrize(("short_by", "level"), [(0, "ok"), (1, "wrong")])
def test_shared_memory_holds_two_versions_of_the_weights_and_the_object_store(
    short_by: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 2**30 + 2 * 4 * 109_888  # float32 on CPUs
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda at: Usage(0, 0, wanted - short_by) if str(at) == "/dev/shm" else usage(at)
    )
    (finding,) = found(load_config([], [f'model.path="{MODEL}"']), "/dev/shm")
    assert finding.level == level
    assert ("--shm-size=2g" in finding.remedy) is bool(short_by)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (
            "http://127.0.0.1:8265",
            "is no address of a Ray cluster, which is a dashboard's and for `rlep submit`: it is HOST:6379, "
            "ray://HOST:10001 or auto",
        ),
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("127.0.0.1:99999", "there is no port 99999"),
        ("no-such-host.invalid:6379", "Name or service not known"),
    ],
)
def test_an_address_of_the_environment_is_checked_and_named(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    (finding,) = found(Config(), "Ray cluster")
    assert finding.level == "wrong"
    assert f"RAY_ADDRESS = {address!r}" in finding.detail
    assert reason in finding.detail
    assert finding.detail.endswith("; without RAY_ADDRESS a private one is started")
    with pytest.raises(PlacementError) as refused:  # the command says the same
        Cluster(ClusterConfig(), "one").connect()
    assert str(refused.value) == finding.detail
    (configured,) = found(load_config([], [f'cluster.address="{address}"']), "Ray cluster")
    assert repr(address) in configured.detail
    assert "RAY_ADDRESS" not in configured.detail


def test_without_an_address_a_private_cluster_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (finding,) = found(Config(), "Ray cluster")
    assert (finding.level, finding.detail.partition(" ")[0]) == ("ok", "a")


@pytest.mark.parametrize(("sink", "package"), [("wandb", "wandb"), ("mlflow", "mlflow-skinny")])
def test_a_trackers_package_that_is_missing_is_found(sink: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = machine._version
    monkeypatch.setattr(machine, "_version", lambda name: None if name == package else installed(name))
    (finding,) = found(load_config([], [f'tracking.sinks=["{sink}", "prometheus"]']), package)
    assert (finding.level, finding.detail) == ("wrong", "not installed")
    assert finding.remedy.startswith(f"pip install '{package}==")
    assert found(Config(), package) == []
