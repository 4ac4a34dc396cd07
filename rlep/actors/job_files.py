"""Files of a working directory that go to the cluster with a job: what git tracks, Python, what the command names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rlep.core.errors import ConfigError, DeadlineExceeded
from rlep.core.plural import NAMED, counted, named, sized

LARGEST = 512 * 2**20
"""Bytes of one job's files that Ray takes."""
SECRET = re.compile(
    r"secret|passw|credential|api[-_]?key|(^|[-_.])tokens?(\.|$)|^id_(rsa|dsa|ecdsa|ed25519)|^service-account|^_netrc|^rclone"
    r"|kubeconfig|\.(env|pem|key|p12|pfx|jks|keystore|tfvars|tfstate|ovpn|kdbx)(\.|$)"
)
"""In a file's name, lower case: it stays here even where git tracks it. Names with a leading dot stay in any case."""
HARMLESS = re.compile(r"\.(py|pyi|md|rst|sh|html|css|js)$|^added_tokens\.json$")
"""Tracked files that are about secrets or tokens, rather than one."""
SECRET_VARIABLES = ("RAY_AUTH_TOKEN_PATH", "RLEP_REDIS_PASSWORD_FILE")
"""Environment variables that name the file of a secret."""
SECRET_KEY = re.compile(r"token[-_]file|passw|secret|[-_]key")
"""In an option or a key of a TOML file: its value is the file of a secret."""

GIT_S = 60.0
"""Seconds that git has to list the files."""
LINK = "they are links that lead out of the directory"
HIDDEN = "they are hidden"
LOOKS = "they look like secrets"
TOKEN = "a token_file, a tls_key or the environment names them as secrets"
OTHER = "git does not track them and the command does not name them"
REMEDIES = {
    LINK: "the job needs an absolute path that its machines have",
    TOKEN: "the job needs the token on the cluster: let token_file be an absolute path that its machines have",
    OTHER: "`git add` takes them along",
}


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What goes, and what does not; paths relative to the working directory."""

    root: Path
    """The working directory, without links."""
    sizes: dict[str, int]
    """File that goes → its bytes."""
    left: dict[str, tuple[str, ...]]
    """Why files stay here → the files."""

    def lines(self) -> list[str]:
        """What goes and what stays, for the user."""
        largest = ", ".join(f"{name} ({sized(self.sizes[name])})" for name in self._largest())
        found = f"uploads {counted(len(self.sizes), 'file')}, {sized(sum(self.sizes.values()))}"
        stay = [
            f"left out because {why}: {named(files)}" + (f"; {REMEDIES[why]}" if why in REMEDIES else "")
            for why, files in self.left.items()
        ]
        return [f"{found}; largest: {largest}" if largest else found, *stay]

    def copy_to(self, directory: Path) -> None:
        """Write the files that go, and nothing else, for Ray to upload.

        Raises ``ConfigError`` where they are more than Ray takes.
        """
        if sum(self.sizes.values()) >= LARGEST:
            raise ConfigError(
                f"a job takes files of {sized(LARGEST)} at most; the largest are {', '.join(self._largest())}: put them where "
                "the cluster's machines find them, and give absolute paths"
            )
        for name in self.sizes:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name, directory / name)

    def _largest(self) -> list[str]:
        return sorted(self.sizes, key=lambda name: (-self.sizes[name], name))[:NAMED]


def job_files(working_dir: Path, arguments: Sequence[str] = ()) -> JobFiles:
    """Choose what of ``working_dir`` goes to the cluster with a command of these words.

    Files that git tracks go, Python files that it does not ignore, and what the command names; none that may not leave.
    """
    root = working_dir.resolve()
    tracked = _git(root, "--cached", "--recurse-submodules") or set()
    others = _git(root, "--others", "--exclude-standard")
    found = tracked | (set(_visible(root, root)) if others is None else others)
    wanted = tracked | {file for file in found if file.endswith(".py")}
    said = [*_words(arguments)]
    said += [pair for file in _files(root, said) if file.endswith(".toml") for pair in _toml(root / file)]
    wanted |= {*_files(root, said)}
    keys = {(root / text).resolve() for key, text in said if SECRET_KEY.search(key) and "\0" not in text}
    keys |= {Path(os.environ[name]).resolve() for name in SECRET_VARIABLES if name in os.environ}
    sizes: dict[str, int] = {}
    left: dict[str, list[str]] = {}
    for file in sorted(wanted | found):
        if why := _stays(root, file, keys, tracked) or (None if file in wanted else OTHER):
            left.setdefault(why, []).append(file)
        elif (root / file).is_file():  # git also lists what was deleted since
            sizes[file] = (root / file).stat().st_size
    return JobFiles(root, sizes, {why: tuple(files) for why, files in left.items()})


def _git(root: Path, *kinds: str) -> set[str] | None:
    """Files that git lists below ``root``; ``None`` where there is no git or no checkout."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z", *kinds]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=GIT_S).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"`{' '.join(command)}` did not end within {GIT_S:.0f} s") from None
    return {os.fsdecode(name) for name in listed.split(b"\0") if name}


def _visible(root: Path, top: Path) -> Iterator[str]:
    """Files below ``top``, relative to ``root``, without those of hidden, linked and environments' directories."""
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        folders[:] = [name for name in folders if name[0] != "." and not (here / name / "pyvenv.cfg").exists()]
        yield from ((here / name).relative_to(root).as_posix() for name in files)


def _words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Values in a command with the option or key before each: ``--config a.toml``, ``--set data.train=b``, ``c``."""
    option = ""
    for word in words:
        key, _, value = word.rpartition("=")
        try:
            parsed = tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": value}
        yield from ((key or option, text) for _, text in _texts(parsed))
        option = word if word.startswith("-") else ""


def _toml(file: Path) -> Iterator[tuple[str, str]]:
    """Texts of a TOML file with their keys."""
    try:
        yield from _texts(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no config; one that the command needs is refused by name
        return


def _texts(tree: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Texts at any depth, each with the nearest key above it."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _texts(value, str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, key)
    elif isinstance(tree, str):
        yield key, tree


def _files(root: Path, said: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Of what was said the files within ``root``, and those of model directories."""
    for _, text in said:
        path = Path(os.path.normpath(root / text))
        if path != root and path.is_relative_to(root):
            if os.path.isfile(path):  # False also for texts that are no names
                yield path.relative_to(root).as_posix()
            elif os.path.isfile(path / "config.json") and any(path.glob("*.safetensors")):
                yield from _visible(root, path)


def _stays(root: Path, file: str, keys: set[Path], tracked: set[str]) -> str | None:
    """Why a file may not leave this machine; what a link leads to counts as well as its name."""
    real = (root / file).resolve()
    if not real.is_relative_to(root):
        return LINK
    if real in keys:
        return TOKEN
    for path in (PurePosixPath(file.casefold()), PurePosixPath(real.relative_to(root).as_posix().casefold())):
        if any(part.startswith(".") for part in path.parts):
            return HIDDEN
        source = file in tracked and HARMLESS.search(path.name)
        if not source and ("secrets" in path.parts or SECRET.search(path.name)):
            return LOOKS
    return None
