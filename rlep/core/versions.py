"""Versions of the libraries whose private parts rlep adapts, checked before the libraries are imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlep.core.errors import WrongVersionError

BOUNDS = {"ray": ((2, 60, 0), (2, 61, 0)), "transformers": ((5, 16, 1), (5, 20, 0))}
"""Lowest version, and the first that is too new; pyproject.toml states the same."""


def check_versions() -> None:
    """Raise WrongVersionError, which names the version needed, where a library is missing, too old or too new."""
    for package, (lowest, beyond) in BOUNDS.items():
        needed = f"{package} >= {_spelled(lowest)} and < {_spelled(beyond)}"
        try:
            found = version(package)
        except PackageNotFoundError:
            raise WrongVersionError(f"rlep needs {needed}, which is not installed") from None
        if not lowest <= _numbers(found) < beyond:
            raise WrongVersionError(
                f"rlep needs {needed}, {found} is installed; pip install '{package}=={_wanted(lowest)}'"
            )


def _numbers(found: str) -> tuple[int, ...]:
    """``(2, 60, 0)`` of ``2.60.0`` or ``2.60.0.post1``; what is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in found.partition("+")[0].split(".")[:3])


def _spelled(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _wanted(lowest: tuple[int, ...]) -> str:
    return f"{lowest[0]}.{lowest[1]}.*"
