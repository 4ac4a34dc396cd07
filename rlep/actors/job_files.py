"""Which files of a working directory go to the cluster with a job: never a secret, a run or a pool."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from rlep.actors.ray_private import travelled
from rlep.core.plural import NAMED, counted, named, sized

EXCLUDED = (
    "/.venv",
    "/.git",
    "/runs",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
)
"""Left out beside what .gitignore and .rayignore name: logs and outputs would change the directory's hash."""

SECRET_NAMES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kubeconfig",
        "kubeconfig",
    ),
    *(
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        ".netrc",
        "_netrc",
        ".pgpass",
        ".npmrc",
        ".pypirc",
        ".htpasswd",
    ),
    *(".git-credentials", "credentials", "credentials.*", "*credentials.json", "service-account*.json"),
    *("token", "token.*", "tokens", "tokens.*", "*.token", "*.tokens", "*[-_]token", "*[-_]token.*", "*[-_]tokens.*"),
    *("password", "password.*", "passwords.*", "*[-_]password", "*[-_]password.*"),
    *("secret", "secret.*", "secrets.*", "*.secret", "*[-_]secret", "*[-_]secret.*", "*[-_]secrets.*"),
)
"""Names, in any case, of files that look like secrets."""
SECRET_DIRECTORIES = {".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", "secrets"}
SOURCES = {".py", ".pyi", ".md", ".rst", ".sh", ".html", ".css", ".js"}
"""Suffixes of files that have ``token`` or ``secret`` in their name because they are about one."""
RUN = {"config.json", "events.jsonl"}
"""Files that a run directory has."""
POOL = {"redis.conf", "served"}
"""Files that the directory of an embedded Redis has."""
SECRET_VARIABLES = ("RAY_AUTH_TOKEN_PATH", "RLEP_REDIS_PASSWORD_FILE")
"""Environment variables that name the file of a secret."""
TOKEN_FILE = re.compile(r"(?:^|[._=])token_file\s*=\s*(.+)$")
"""In a word of a command: ``pool.token_file=PATH``."""


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What goes, and what does not; paths relative to the working directory."""

    sizes: dict[str, int]
    """File that goes → its bytes."""
    secrets: tuple[str, ...]
    """Files that look like secrets, and those that ``SECRET_VARIABLES`` name."""
    tokens: tuple[str, ...]
    """Files that a config of the working directory, or the command, names as a ``token_file``."""
    directories: tuple[str, ...]
    """Directories of runs and pools."""

    @property
    def excludes(self) -> list[str]:
        """Patterns in gitignore's language, for Ray."""
        return [*EXCLUDED, *(f"/{_literal(name)}" for name in (*self.secrets, *self.tokens, *self.directories))]

    def lines(self) -> list[str]:
        """What goes and what stays, for the user."""
        largest = sorted(self.sizes, key=lambda name: (-self.sizes[name], name))[:NAMED]
        found = [f"uploads {counted(len(self.sizes), 'file')}, {sized(sum(self.sizes.values()))}"]
        if largest:
            found[0] += "; largest: " + ", ".join(f"{name} ({sized(self.sizes[name])})" for name in largest)
        if self.secrets:
            found.append(f"left out because they look like secrets: {named(self.secrets)}")
        if self.tokens:
            found.append(
                f"left out because a token_file names it: {named(self.tokens)}. The job needs the token on the cluster: "
                "let token_file be an absolute path that its machines have"
            )
        if self.directories:
            found.append(f"left out because they hold a run or a pool: {named(self.directories)}")
        return found


def job_files(working_dir: Path, arguments: Sequence[str] = ()) -> JobFiles:
    """What of ``working_dir`` goes to the cluster with a command of these words, as Ray reads .gitignore and .rayignore."""
    root = working_dir.absolute()
    files = [path.relative_to(root).as_posix() for path in travelled(root, EXCLUDED) if not path.is_dir()]
    names: dict[str, set[str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        names.setdefault(folder, set()).add(name)
    held = sorted(folder for folder, found in names.items() if folder and (found >= RUN or found >= POOL))
    outer = [folder for folder in held if not _within(folder, (other for other in held if other != folder))]
    others = [file for file in files if not _within(file, outer)]
    tokens = _token_files(root, others, arguments) & {*others}
    given = _inside(root, [Path(os.environ[name]).absolute() for name in SECRET_VARIABLES if name in os.environ])
    secrets = {file for file in others if looks_secret(file) or file in given} - tokens
    sizes = {file: (root / file).lstat().st_size for file in others if file not in secrets | tokens}
    return JobFiles(sizes, tuple(sorted(secrets)), tuple(sorted(tokens)), tuple(outer))


def _token_files(root: Path, files: Iterable[str], arguments: Iterable[str]) -> set[str]:
    """What TOML files and words of a command name as a ``token_file``, and where links of these names lead."""
    named = [found[1].strip("\"'") for word in arguments if (found := TOKEN_FILE.search(word))]
    for file in files:
        if file.endswith(".toml"):
            try:
                named += _values(tomllib.loads((root / file).read_text()))
            except (OSError, ValueError):  # no config; one that the command needs is refused by name
                continue
    return _inside(root, [root / name for name in named])


def _inside(root: Path, places: Iterable[Path]) -> set[str]:
    """Of these places those within ``root``, relative to it, and where links lead."""
    paths = [Path(os.path.normpath(place)) for place in places]
    return {
        path.relative_to(base).as_posix()
        for base, path in [*((root, path) for path in paths), *((root.resolve(), path.resolve()) for path in paths)]
        if path.is_relative_to(base)
    }


def _values(tree: Mapping[str, object]) -> Iterator[str]:
    """Texts of the keys ``token_file`` and ``…_token_file``, at any depth."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _values(value)
        elif isinstance(value, str) and f"_{key}".endswith("_token_file"):
            yield value


def looks_secret(file: str) -> bool:
    """Whether the name of a file, or of a directory that it is in, is one that secrets have."""
    path = PurePosixPath(file.casefold())
    if any(part in SECRET_DIRECTORIES and part.startswith(".") for part in path.parts[:-1]):
        return True
    if path.suffix in SOURCES:
        return False
    return "secrets" in path.parts[:-1] or any(fnmatchcase(path.name, pattern) for pattern in SECRET_NAMES)


def _within(file: str, folders: Iterable[str]) -> bool:
    return any(file.startswith(f"{folder}/") for folder in folders)


def _literal(name: str) -> str:
    return re.sub(r"([\\*?\[\]!# ])", r"\\\1", name)
