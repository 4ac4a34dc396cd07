"""Packages that `pip install rlep` does not bring: the extra that does, and the versions that rlep works with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rlep.core.errors import WrongVersionError

EXTRAS = {
    "pool": ("grpc_health", "grpc_reflection", "pyarrow", "redis"),
    "hub": ("huggingface_hub",),
    "verifier": ("httpx", "latex2sympy2_extended", "math_verify", "mpmath"),
    "cuda": (
        "aiohttp", "jinja2", "latex2mathml", "markupsafe", "psutil", "ray", "safetensors", "starlette", "tokenizers", "torch",
        "transformers", "uvicorn", "vllm",
    ),
}  # fmt: skip
"""Extra → modules of the packages that come with it; pyproject.toml states the same. The extra cuda includes the others."""
BOUNDS = {
    "huggingface_hub": ((2, 4, 0), (3, 0, 0)),
    "ray": ((2, 60, 0), (2, 61, 0)),
    "transformers": ((5, 16, 1), (5, 20, 0)),
}
"""Lowest version, and the first that is too new, of libraries whose parts move; pyproject.toml states the same."""


def check_versions(*packages: str) -> None:
    """Raise ``WrongVersionError`` where one of ``BOUNDS`` is missing, too old or too new; without names: where no run can be."""
    for package in packages or ("ray", "transformers"):
        lowest, beyond = BOUNDS[package]
        needed = f"{package} >= {_spelled(lowest)} and < {_spelled(beyond)}"
        try:
            found = version(package)
        except PackageNotFoundError:
            raise WrongVersionError(f"rlep needs {needed}, which is not installed: {_remedy(package)}") from None
        if not lowest <= _numbers(found) < beyond:
            raise WrongVersionError(
                f"rlep needs {needed}, {found} is installed; pip install '{package}=={_wanted(lowest)}'"
            )


def check_installed(module: str) -> None:
    """Raise ``WrongVersionError``, which names the extra, where the package of a module of ``EXTRAS`` is not there."""
    if find_spec(module) is None:
        raise WrongVersionError(f"this needs {module}, which is not installed: {_remedy(module)}")


def missing_extra(error: ModuleNotFoundError) -> WrongVersionError | None:
    """Return what ``check_installed`` raises where that is why an import failed, None where it failed for another reason."""
    module = (error.name or "").partition(".")[0]
    if any(module in modules for modules in EXTRAS.values()):
        try:
            check_installed(module)
        except WrongVersionError as missing:
            return missing
    return None


def _remedy(module: str) -> str:
    extra = next(extra for extra, modules in EXTRAS.items() if module in modules)
    return f"pip install 'rlep[{extra}]'" + (", or 'rlep[cpu]' without a GPU" if extra == "cuda" else "")


def _numbers(found: str) -> tuple[int, ...]:
    """``(2, 60, 0)`` of ``2.60``, ``2.60.0`` or ``2.60.0.post1``; what is no number counts as 0."""
    parts = [*found.partition("+")[0].split("."), "", ""]
    return tuple(int(part) if part.isdigit() else 0 for part in parts[:3])


def _spelled(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _wanted(lowest: tuple[int, ...]) -> str:
    return f"{lowest[0]}.{lowest[1]}.*"
