"""What the tests run and read of vLLM on CPUs is what the CUDA wheel has: the same files, by the list in ``cuda_wheel.json``.

So ``test_private_api.py``, ``tests/engines/weights/test_nccl.py`` (arguments of the NCCL transfer), ``test_sleep_state.py`` and
every engine that starts hold for both builds. Here are the parts that no CPU runs. Sources are read, not imported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest

from scripts.cuda_wheel import RESULT, digest_of, installed, python_sources
from tests.contract.test_private_api import ROOT, SYMBOLS, defined, source_of

WHEEL = json.loads(RESULT.read_text())


def parsed(module: str) -> ast.Module:
    path = source_of(module)
    assert path is not None, module
    return ast.parse(path.read_text())


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def keywords(file: str, function: str) -> set[str]:
    """Names of all arguments that calls of ``function`` in one of our files give."""
    tree = ast.parse((ROOT / file).read_text())
    return {keyword.arg for call in calls(tree, function) for keyword in call.keywords if keyword.arg}


def test_the_list_is_of_the_wheel_that_is_locked() -> None:
    pin = re.search(
        r"^vllm==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", (ROOT / "requirements" / "cuda.txt").read_text(), re.M
    )
    assert pin is not None
    remedy = (
        f"run `pip download --no-deps -d DIRECTORY vllm=={pin[1]}` and `python scripts/cuda_wheel.py DIRECTORY/*.whl`"
    )
    assert f"sha256:{WHEEL['sha256']}" in pin[2], remedy
    assert WHEEL["wheel"].startswith(f"vllm-{pin[1]}-"), remedy


def test_the_installed_sources_are_those_of_the_cuda_wheel() -> None:
    sources = python_sources(installed().read_text("RECORD") or "")
    assert len(sources.keys() - WHEEL["different"]) == WHEEL["same"] > 2000
    assert digest_of(sources, WHEEL["different"]) == WHEEL["digest"], "another vLLM than that of requirements/cuda.txt"


def test_no_source_that_differs_is_one_that_rlep_relies_on() -> None:
    root = source_of("vllm")
    assert root is not None
    relied = {source_of(symbol.module) for symbols in SYMBOLS.values() for symbol in symbols}
    assert {root.parents[1] / path for path in WHEEL["different"]} & relied == set()
    assert WHEEL["different"] == ["vllm/_version.py", "vllm/platforms/__init__.py", "vllm/utils/cpu_triton_utils.py"]


def test_every_engine_argument_is_one_of_vllm_s() -> None:
    engine = parsed("vllm.engine.arg_utils")
    owners = [node for node in engine.body if isinstance(node, ast.ClassDef) and node.name.endswith("EngineArgs")]
    assert [owner.name for owner in owners] == ["EngineArgs", "AsyncEngineArgs"]
    given = keywords("rlep/engines/sampler/setup.py", "dict")
    assert {"enable_sleep_mode", "enforce_eager", "weight_transfer_config"} <= given
    assert {name for name in given if not any(defined(owner, name) for owner in owners)} == set()


@pytest.mark.parametrize(
    ("record", "sources"),
    [
        ("vllm/a.py,sha256=x,1\nvllm/b.so,sha256=y,2\n", {"vllm/a.py": "sha256=x"}),
        ("vllm/third_party/k.py,sha256=x,1\nother/a.py,sha256=x,1\n../bin/vllm,sha256=x,1\n", {}),
    ],
)
def test_only_python_files_outside_the_kernels_count(record: str, sources: dict[str, str]) -> None:
    assert python_sources(record) == sources


def test_a_file_that_changed_changes_the_digest() -> None:
    sources = {"vllm/a.py": "sha256=x", "vllm/b.py": "sha256=y"}
    assert digest_of(sources, []) != digest_of(sources | {"vllm/b.py": "sha256=z"}, [])
    assert digest_of(sources, ["vllm/b.py"]) == digest_of(sources | {"vllm/b.py": "sha256=z"}, ["vllm/b.py"])
