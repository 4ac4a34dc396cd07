"""The deploy files, checked offline by the tools and schemas of the systems that read them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rlep.actors.jobs import STOP_WAIT, STOP_WAIT_S
from rlep.config.settings import load_config
from rlep.plan.devices import wanted_cpus
from rlep.plan.host import plan_host
from tests.unit.plan.test_plan import MATH_7B

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCRIPTS = [
    *sorted(DEPLOY.rglob("*.sh")),
    *sorted(DEPLOY.rglob("*.sbatch")),
    *sorted((ROOT / "scripts").glob("*.sh")),
    ROOT / ".ci/run",
]
KUBERNETES = "1.31"
ROLES = {"generators": "generator", "verifiers": "verifier", "learners": "learner"}
SECRETS = {"ray_token", "redis_password", "users.acl", "grafana_password"}

Document = Mapping[str, Any]


def tool(name: str) -> str:
    """A validator of this environment."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found, f"{name} is not installed: run `make setup-dev`"
    return found


def accepts(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def manifests() -> list[Document]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def documents(kind: str) -> list[Document]:
    return [document for document in manifests() if document["kind"] == kind]


def only(kind: str) -> Any:
    (document,) = documents(kind)
    return document


def ray_pods() -> Iterator[tuple[str, Any]]:
    """(group, pod template) of the head and of every worker group."""
    spec = only("RayCluster")["spec"]
    yield "head", spec["headGroupSpec"]["template"]
    for group in spec["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def test_the_dockerfile_passes_hadolint() -> None:
    accepts(tool("hadolint"), DEPLOY / "Dockerfile")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path: Path) -> None:
    accepts(tool("shellcheck"), path)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_compose_files_keep_to_the_specification(name: str) -> None:
    accepts(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / name)


def test_with_gpus_the_head_has_them_all_and_shared_memory_for_7b() -> None:
    """Two versions of a 7B model in bfloat16, and a GiB for Ray's object store."""
    (head,) = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"].values()
    assert head["gpus"] == "all"
    size = re.fullmatch(r"\$\{RLEP_SHM:-(\d+)gb\}", head["shm_size"])  # Docker's gb is a GiB
    assert size
    config = load_config([ROOT / "configs/paper/rlep.toml", ROOT / "configs/machines/8x80gb.toml"])
    wanted = plan_host(config, MATH_7B).published_bytes + 2**30
    assert int(size[1]) == -(-wanted // 2**30)
    assert wanted_cpus(config) <= int(re.findall(r"RLEP_HEAD_CPUS=(\d+)", (DEPLOY / "compose.gpu.yaml").read_text())[0])


def test_images_copy_only_what_the_repository_has_and_run_as_a_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M)
        for word in line.split()[:-1]
        if word[0] != "-"
    ]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    for source in copied:
        assert any(one.match(pattern) for one in (Path(source), *Path(source).parents) for pattern in allowed), (
            f"{source} is not in Dockerfile.dockerignore"
        )
        assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which does not exist"
    stages = dict(re.findall(r"^FROM base AS (cpu|cuda)\n((?:(?!^FROM ).*\n)*)", text, re.M))
    assert set(stages) == {"cpu", "cuda"}
    assert all(re.findall(r"^USER (.*)$", stage, re.M) == ["1000:1000"] for stage in stages.values())


@pytest.mark.parametrize(
    "document",
    [d for d in manifests() if "ray.io" not in d["apiVersion"]],
    ids=lambda d: f"{d['kind']}-{d['metadata']['name']}",
)
def test_kubernetes_resources_are_valid(document: Document) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("group", "template"), list(ray_pods()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_ray_pods_are_valid_pods_without_privileges(group: str, template: Any) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": group}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = template["spec"]["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_ray_cluster_has_a_token_and_one_labelled_group_a_role() -> None:
    spec = only("RayCluster")["spec"]
    assert set(spec) == {
        "rayVersion",
        "authOptions",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    }
    assert spec["authOptions"] == {"mode": "token", "secretName": "rlep-ray-token"}
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert {name: group["labels"] for name, group in groups.items()} == {n: {"rlep-role": r} for n, r in ROLES.items()}
    allowed = {
        "groupName",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "numOfHosts",
        "labels",
        "rayStartParams",
        "template",
    }
    for name, group in groups.items():
        assert set(group) <= allowed, name
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"], name
    gang = groups["learners"]
    assert gang["minReplicas"] == gang["replicas"] == gang["maxReplicas"] == 1  # numOfHosts pods, all or none
    assert groups["generators"]["maxReplicas"] > groups["generators"]["minReplicas"]
    assert groups["verifiers"]["maxReplicas"] > groups["verifiers"]["minReplicas"]


def test_ray_is_told_the_resources_its_pods_have() -> None:
    spec = only("RayCluster")["spec"]
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        (container,) = group["template"]["spec"]["containers"]
        requests = container["resources"]["requests"]
        start = group["rayStartParams"]
        assert (start["num-cpus"], start["num-gpus"]) == (requests["cpu"], requests.get("nvidia.com/gpu", "0"))
        assert all(isinstance(value, str) for value in start.values())  # the resource definition wants strings


def test_half_of_shared_memory_at_most_is_the_object_stores() -> None:
    spec = only("RayCluster")["spec"]
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        limits = [
            volume["emptyDir"]["sizeLimit"]
            for volume in group["template"]["spec"]["volumes"]
            if volume["name"] == "shm"
        ]
        assert [
            2 * int(group["rayStartParams"]["object-store-memory"]) <= int(limits[0].removesuffix("Gi")) * 2**30
        ] == [True]


def test_the_patch_gives_rdma_devices_to_the_pods_between_which_weights_and_gradients_go() -> None:
    cluster = deepcopy(only("RayCluster"))
    for change in json.loads((DEPLOY / "kubernetes/rdma.json").read_text()):  # RFC 6902, as far as it is used
        *parents, last = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
        place = cluster
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        assert (change["op"], last in place) == ("add", False)
        place[last] = change["value"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        found = [container["resources"][kind].get("rdma/hca_shared_devices_a") for kind in ("requests", "limits")]
        assert found == [None if group["groupName"] == "verifiers" else "1"] * 2
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_the_readme_applies_the_cluster_once_with_the_registrys_image_and_the_patch_in_the_same_pipe() -> None:
    """A pod keeps what it has: what is applied later to a cluster that is up changes none."""
    blocks = re.findall(r"```sh\n(.*?)```", (DEPLOY / "README.md").read_text(), re.S)
    (block,) = [block for block in blocks if "raycluster.yaml" in block]
    (line,) = [line for line in block.splitlines() if "raycluster.yaml" in line]
    image, devices, apply = line.split(" | ")
    _, change, file = shlex.split(image)
    assert (devices, apply) == ("devices", "kubectl apply -f -")
    _, before, after, _ = change.split("#")
    assert (ROOT / file).read_text().count(before) == 4  # the head and three groups
    assert after.removeprefix("image: ") in block.partition("docker push ")[2].splitlines()[0]
    patch = "kubectl patch --local -f - --type=json --patch-file deploy/kubernetes/rdma.json -o yaml"
    assert [part for part in block.splitlines() if "devices()" in part] == [
        "devices() { cat; }",
        f"# devices() {{ {patch}; }}",
    ]


def test_the_cuda_image_has_what_nccl_needs_for_infiniband() -> None:
    stage = (DEPLOY / "Dockerfile").read_text().split("FROM base AS cuda\n")[1]
    (packages,) = re.findall(r"--no-install-recommends (.*) \\", stage)
    assert {"libibverbs1", "ibverbs-providers"} < set(packages.split())


def test_ray_versions_agree_with_the_locks() -> None:
    version = only("RayCluster")["spec"]["rayVersion"]
    for lock in ("cpu", "cuda"):
        assert f"\nray=={version} " in (ROOT / f"requirements/{lock}.txt").read_text()


def entrypoints() -> dict[str, list[str]]:
    return {job["metadata"]["name"]: shlex.split(job["spec"]["entrypoint"]) for job in documents("RayJob")}


def test_there_is_a_job_for_each_part_of_the_workflow() -> None:
    assert {name: words[:2] for name, words in entrypoints().items()} == {
        "rlep-baseline": ["rlep", "train"],
        "rlep-train": ["rlep", "train"],
        "rlep-collect": ["rlep", "collect"],
        "rlep-evaluate": ["rlep", "evaluate"],
    }
    for job in documents("RayJob"):
        assert set(job["spec"]) == {"clusterSelector", "submissionMode", "entrypoint"}
        assert job["spec"]["clusterSelector"] == {"ray.io/cluster": only("RayCluster")["metadata"]["name"]}


def test_jobs_wait_for_nodes_that_the_autoscaler_starts_and_are_let_write_a_checkpoint() -> None:
    for name, words in entrypoints().items():
        assert ("--set", "cluster.place_deadline_s=1800") in pairwise(words), name
    (container,) = next(ray_pods())[1]["spec"]["containers"]  # the head, where Ray's supervisors of jobs read it
    assert {"name": STOP_WAIT, "value": str(STOP_WAIT_S)} in container["env"]


def test_jobs_ask_for_no_more_than_the_cluster_can_grow_to() -> None:
    groups = {group["groupName"]: group for group in only("RayCluster")["spec"]["workerGroupSpecs"]}

    def most(name: str, resource: str) -> int:
        group = groups[name]
        return group["maxReplicas"] * group.get("numOfHosts", 1) * int(group["rayStartParams"][resource])

    for name, words in entrypoints().items():
        wanted = dict(word.split("=", 1) for word in words if re.match(r"\w+\.(count|ranks)=", word))
        assert int(wanted["generator.count"]) <= most("generators", "num-gpus"), name
        assert int(wanted["verifier.count"]) <= most("verifiers", "num-cpus"), name
        assert int(wanted.get("learner.ranks", 0)) <= most("learners", "num-gpus"), name


def test_the_pools_redis_has_its_own_volume_and_only_ray_may_reach_it() -> None:
    spec = only("StatefulSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:2] == ["redis-server", "/etc/redis/redis.conf"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == [mounts["/data"]]
    assert {"/etc/redis", "/run/secrets/rlep"} < set(mounts)
    (rule,) = policies()["rlep-redis"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"ray.io/cluster": "rlep"}}}]
    # Room for the copy of what changes while the append-only file is rewritten.
    assert container["command"][-1] == "10gb"
    assert container["resources"]["limits"]["memory"] == "16Gi"


def policies() -> dict[str, Any]:
    return {document["metadata"]["name"]: document["spec"] for document in documents("NetworkPolicy")}


def test_every_pod_has_a_policy_and_ray_takes_all_ports_from_itself_only() -> None:
    selected = [policy["podSelector"]["matchLabels"] for policy in policies().values()]
    assert selected == [
        {"ray.io/cluster": only("RayCluster")["metadata"]["name"]},
        {"app.kubernetes.io/name": "rlep-redis"},
    ]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies().values())
    among, dashboard, metrics = policies()["rlep-ray"]["ingress"]
    assert among == {"from": [{"podSelector": {"matchLabels": {"ray.io/cluster": "rlep"}}}]}
    ports = {port["name"]: port["containerPort"] for port in next(ray_pods())[1]["spec"]["containers"][0]["ports"]}
    assert (dashboard["ports"], metrics["ports"]) == ([{"port": ports["dashboard"]}], [{"port": ports["metrics"]}])
    assert all(source["podSelector"] for rule in (dashboard, metrics) for source in rule["from"])  # none for any pod


def test_only_the_head_has_the_password_of_redis() -> None:
    has = [group for group, template in ray_pods() if "redis" in json.dumps(template)]
    assert has == ["head"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert [name for name, service in compose.items() if "redis_password" in json.dumps(service)] == ["head"]
    for name in ("head", "worker"):
        assert compose[name]["environment"]["RAY_AUTH_MODE"] == "token"
        assert compose[name]["secrets"][0]["source"] == "ray_token"


def test_only_the_head_has_a_token_of_the_hub_and_all_see_what_it_downloads() -> None:
    containers = {group: template["spec"]["containers"][0] for group, template in ray_pods()}
    assert [group for group, container in containers.items() if "HF_TOKEN" in json.dumps(container)] == ["head"]
    (token,) = [held for held in containers["head"]["env"] if held["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"]["optional"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert [name for name, service in compose.items() if "HF_TOKEN" in json.dumps(service)] == ["head"]
    (home,) = re.findall(r"HF_HOME=(\S+)", (DEPLOY / "Dockerfile").read_text())
    for container in containers.values():
        (volume,) = [at["name"] for at in container["volumeMounts"] if at["mountPath"] == str(Path(home).parent)]
        assert volume == "work"
    assert all(f"work:{Path(home).parent}" in compose[name]["volumes"] for name in ("head", "worker"))


def test_images_of_others_are_pinned_by_digest() -> None:
    files = [DEPLOY / "Dockerfile", DEPLOY / "compose.yaml", *MANIFESTS]
    named = [name for path in files for name in re.findall(r"^\s*(?:FROM|image:) (\S+)", path.read_text(), re.M)]
    others = {name for name in named if name != "base" and "rlep:" not in name}
    assert sorted(name.partition("@")[0] for name in others) == [
        *("grafana/grafana:12.1.0", "prom/prometheus:v3.5.0", "python:3.12.11-slim-bookworm", "redis:7.2-alpine"),
    ]
    assert all(re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", name) for name in others)


def test_no_file_holds_a_secret_and_all_use_those_that_the_script_makes() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert {Path(secret["file"]).name for secret in compose["secrets"].values()} == SECRETS
    assert documents("Secret") == []
    for path in DEPLOY.rglob("*"):
        if path.is_file() and "secrets" not in path.relative_to(DEPLOY).parts:
            assert not re.search(r"redis://[^/@\s]*:[^/@\s]+@", path.read_text()), path
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def commands() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of every rlep command in the deploy files that overrides settings."""
    yield from entrypoints().items()
    text = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    for block in re.findall(r"```\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if ".toml" in line or "--set" in line:
                yield "README.md", shlex.split(line.split(" && ")[0])
    yield (
        "rlep.sbatch",
        [
            *("--set", "generator.gpus=1", "--set", "learner.gpus=1"),  # of the user's own configuration
            *shlex.split(" ".join(re.findall(r"--set [\w.=-]+", (DEPLOY / "slurm/rlep.sbatch").read_text()))),
        ],
    )


def test_a_job_takes_along_no_models_or_runs() -> None:
    """The head's directory has both; Ray takes 100 MiB."""
    assert "COPY --chown=rlep:rlep rlep/config/presets configs\n" in (DEPLOY / "Dockerfile").read_text()
    (words,) = re.findall(r"exec head rlep submit (.*)", (DEPLOY / "README.md").read_text())
    assert words.startswith("--working-dir configs -- ")


def test_every_command_gives_a_config_that_can_be_run() -> None:
    for where, words in commands():
        files = [ROOT / word for word in words if word.endswith(".toml")]
        config = load_config(files, [word for before, word in pairwise(words) if before == "--set"])
        roles = {"generator": config.generator, "verifier": config.verifier, "learner": config.learner}
        for name, role in roles.items():
            assert role.label_selector in ({}, {"rlep-role": name}), where
