"""The wheel in environments of its own: bare ones of several protobufs, and those that TRL and verl resolve to.

Packages come from PyPI, or from the index that pip's settings or uv's own variables name.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rlep import prompt_id_of
from rlep.config.shipped import shipped

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
REQUIRED = "RLEP_REGISTRY_TESTS"
"""Where this is 1 a package index must be there."""
CLIENT = """
import asyncio, json, sys
import google.protobuf, numpy as np
from rlep import AsyncPoolClient, PoolClient, Provenance, Sampling, Trajectory, Verdict, prompt_id_of

prompt_id = prompt_id_of("What is 2 + 2?", "4")
trajectory = Trajectory(
    prompt_id, np.array([19, 7, 2], np.int32), np.array([-0.5, -0.25, -0.125], np.float32), "stop",
    Verdict("correct", "4", verifier="math", version="4"), Provenance("run", 100, "d" * 32, Sampling()), created_at=1.0,
)
address, token = sys.argv[1:3]

async def listed():
    async with AsyncPoolClient(address, token=token) as pool:
        return await pool.prompt_ids()

with PoolClient(address, token=token) as pool:
    report = pool.add([trajectory])
    (drawn,) = pool.sample([prompt_id], 2, seed=0, step=41, minimum=1)[prompt_id]
    print(json.dumps({
        "protobuf": google.protobuf.__version__.split(".")[0],
        "stored": report.inserted + report.duplicates,
        "drawn": [drawn.tokens.tolist(), drawn.logprobs.tolist(), drawn.verdict.extracted],
        "prompts": asyncio.run(listed()) == [prompt_id],
        "digest": pool.digest(),
    }))
"""


@functools.cache
def registry() -> dict[str, str]:
    """Variables by which uv finds what pip finds: uv does not read pip's files."""
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE", "find-links": "UV_FIND_LINKS"}
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    settings = (line.split("=", 1) for line in listed.splitlines())  # :env:.cert='…', then global.cert='…'
    found: dict[str, str] = {}
    for name, value in settings:
        if own := names.get(name.rpartition(".")[2]):
            found.setdefault(own, os.environ.get(own, ast.literal_eval(value)))
    return found


def look_for_registry() -> None:
    """Skip the test, or fail where the registry is required, without a package index."""
    try:
        uv("pip", "compile", "-", "--no-header", given="zstandard")
    except AssertionError as error:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"no package index: {error}", pytrace=False)
        pytest.skip(f"no package index: {error}; with {REQUIRED}=1 that is an error")


def uv(*words: str | Path, given: str = "") -> str:
    """What a command of uv prints; it gets no other Python."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", *words],
        input=given,
        env=os.environ | registry() | {"UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Environment(NamedTuple):
    """A virtual environment with the wheel."""

    place: Path

    def run(self, *words: str | Path, status: int = 0) -> str:
        """What a program of the environment prints on standard output, or for another status on standard error."""
        command = [self.place / "bin" / str(words[0]), *words[1:]]
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=self.place, env=own, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    def install(self, *words: str | Path) -> None:
        uv("pip", "install", "--python", self.place / "bin/python", *words)


class Served(NamedTuple):
    """A pool server and who may do everything."""

    address: str
    token: str


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files behind that a later one takes along."""
    look_for_registry()
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "rlep", source / "rlep", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    uv("build", "--wheel", "--no-build-isolation", "--out-dir", source / "dist", source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install rlep-….whl` makes today."""
    environment = made(tmp_path_factory.mktemp("bare"))
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def served(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of an environment where what `rlep pool serve` asked for was installed."""
    environment = made(tmp_path_factory.mktemp("served"))
    environment.install(wheel)
    words = ["pool", "serve", "--embedded", "data", "--listen", "127.0.0.1:0", "--token-file", "tokens"]
    error = environment.run("rlep", *words, status=1)
    assert "pip install 'rlep[pool]'" in error
    environment.install("rlep[pool]")
    command = [str(environment.place / "bin/rlep"), *words]
    with subprocess.Popen(command, cwd=environment.place, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Served(server.stdout.readline().strip(), (environment.place / "tokens").read_text().strip())
        finally:
            server.terminate()


def made(place: Path) -> Environment:
    uv("venv", "--python", sys.executable, place, "--allow-existing")
    return Environment(place)


def test_a_bare_environment_has_the_command_line_and_the_shipped_configs(bare: Environment, served: Served) -> None:
    installed = {
        package["name"] for package in json.loads(uv("pip", "list", "--python", bare.place, "--format", "json"))
    }
    assert {"rlep", "grpcio", "numpy", "protobuf", "pydantic", "zstandard"} <= installed
    assert not {"torch", "ray", "redis", "transformers", "huggingface-hub", "httpx", "pyarrow"} & installed
    assert bare.run("rlep", "--version").startswith("rlep ")
    listed = [line.split()[0] for line in bare.run("rlep", "config", "list").splitlines()]
    assert listed == [*shipped()]
    bare.run("rlep", "config", "copy", "paper")
    copied, recipe = bare.place / "configs/paper", ROOT / "rlep/config/presets/paper"
    assert {path.name: path.read_text() for path in copied.iterdir()} == {
        path.name: path.read_text() for path in recipe.iterdir()
    }
    (bare.place / "token").write_text(served.token)
    pool = ["--redis", f"grpc://{served.address}", "--set", "pool.token_file=token"]
    bare.run("python", "-c", CLIENT, served.address, served.token)
    assert json.loads(bare.run("rlep", "pool", "stats", "--json", *pool))["trajectories"] == 1
    prompt_id = prompt_id_of("What is 2 + 2?", "4")
    assert "token ids [19, 7, 2]" in bare.run("rlep", "pool", "show", prompt_id, *pool)
    assert "would remove 0 of 1 trajectory" in bare.run(
        "rlep", "pool", "prune", "--policy", "other@*", "--dry-run", *pool
    )
    assert "removed 0 damaged records of 1" in bare.run("rlep", "pool", "prune", "--damaged", *pool)


@pytest.mark.parametrize("protobuf", ["5", "6", "7"])
def test_client_and_stubs_run_with_every_protobuf(protobuf: str, wheel: Path, served: Served, tmp_path: Path) -> None:
    """Protobuf 5 with the lowest version of every package; one digest by all of them."""
    environment = made(tmp_path / "environment")
    if protobuf == "5":
        pins = uv("pip", "compile", ROOT / "pyproject.toml", "--resolution", "lowest-direct", "--only-binary", ":all:")
        (tmp_path / "lowest.txt").write_text(pins)
        environment.install("--no-deps", "-r", tmp_path / "lowest.txt", wheel)
        # Older ones of pydantic do not take 1.0 for 1, of typer no literals.
        shown = json.loads(environment.run("rlep", "config", "show", "--set", "loss.temperature=1.0"))
        assert shown["loss"]["temperature"] == 1
    else:
        environment.install(wheel, f"protobuf=={protobuf}.*")
    drawn = [[19, 7, 2], [-0.5, -0.25, -0.125], "4"]  # these log-probs are exact in float16
    for implementation in ("upb", "python"):
        program = f"import os; os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = {implementation!r}\n{CLIENT}"
        told = json.loads(environment.run("python", "-W", "error", "-c", program, served.address, served.token))
        digest = "bb6ce61e4d33962bdcccc6f70bf8c8ad"
        assert told == {"protobuf": protobuf, "stored": 1, "drawn": drawn, "prompts": True, "digest": digest}


def test_the_verifier_extra_grades_without_a_trainer(wheel: Path, tmp_path: Path) -> None:
    environment = made(tmp_path / "environment")
    environment.install(f"rlep[verifier] @ {wheel.as_uri()}")
    row = {"gold": r"\frac{\sqrt{2}}{2}", "response": r"\boxed{\sin(\pi/4)}"}
    (environment.place / "rows.jsonl").write_text(json.dumps(row))
    graded = json.loads(environment.run("rlep", "grade", "rows.jsonl"))
    assert (graded["status"], graded["path"]) == ("correct", "full")  # compared by value, in a worker
    assert "torch" not in uv("pip", "list", "--python", environment.place)


@pytest.mark.parametrize("present", ["trl[vllm]", "verl[vllm]", "protobuf<6"])
def test_all_but_the_hub_fits_into_a_trainers_environment(present: str, wheel: Path, tmp_path: Path) -> None:
    """All that rlep needs is there in a version that rlep takes, or new to it."""
    plain = ["pip", "compile", "-", "--no-header", "--no-annotate"]
    pins = uv(*plain, given=present).splitlines()
    (tmp_path / "there.txt").write_text("\n".join(pins))
    needed = uv(
        *plain, "--constraints", tmp_path / "there.txt", given=f"rlep[pool,verifier] @ {wheel.as_uri()}"
    ).splitlines()
    there = {pin.partition("==")[0] for pin in pins}
    assert re.split(r"\W", present)[0] in there
    kept = {pin for pin in needed if pin.partition("==")[0] in there}
    assert kept <= {*pins}
    assert {pin.partition("==")[0] for pin in needed} >= {"grpcio", "protobuf", "redis", "zstandard"}
