"""Files of a working directory that stay here when a job takes the rest: what git does not track, secrets, links that lead out.

Ray itself leaves out what ``.gitignore`` names.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

from rlep.core.errors import ConfigError
from rlep.core.plural import named

SECRET = re.compile(
    r"secret|passw|credential|api[-_]?key|(^|[-_.])tokens?(\.|$)|^id_(rsa|dsa|ecdsa|ed25519)|^service-account|^_netrc|^rclone"
    r"|kubeconfig|\.(env|pem|key|p12|pfx|jks|keystore|tfvars|tfstate|ovpn|kdbx)(\.|$)"
)
"""In a file's name, lower case. Names with a leading dot stay in any case."""
HARMLESS = re.compile(
    r"^(?!(secrets?|passwords?|credentials?)\.).*\.(py|pyi|md|rst|sh|html|css|js)$|^added_tokens\.json$"
)
"""Files that are about secrets or tokens, rather than one."""
SECRET_VARIABLES = ("RAY_AUTH_TOKEN_PATH", "RLEP_REDIS_PASSWORD_FILE")
"""Environment variables that name the file of a secret."""
NAMES_SECRET = re.compile(r"""(?:token[-_]file|passw|secret|[-_]key)[\w.-]*["']?\s*[=\s]\s*["']*([^"'=\n]+?)["']*$""")
"""An option or a key of a TOML file whose value is the file of a secret."""

QUOTED = re.compile(r"""["']([^"'\n]{1,4096})["']""")
"""A text of a TOML file."""
GIT_S = 60.0
"""Seconds that git has to list its files."""

LINK = "they are links that lead out of the directory, or back"
HIDDEN = "they are hidden"
LOOKS = "they look like secrets"
TOKEN = "a token_file, a tls_key or the environment names them as secrets"
ENVIRONMENT = "they are Python environments"
UNTRACKED = "git does not track them, and the command does not name them"
REMEDIES = {
    LINK: "the job needs an absolute path that its machines have",
    UNTRACKED: "`git add` what the job needs (after `git init` where there is no repository; nothing has to be committed)",
    TOKEN: "the job needs the token on the cluster: let token_file be an absolute path that its machines have",
}


def withheld(working_dir: Path, arguments: Sequence[str] = ()) -> dict[str, list[str]]:
    """Choose what of ``working_dir`` may not leave with a command of these words: why → paths relative to it.

    Raises ``ConfigError`` where git does not say which files belong to the project.
    """
    root = working_dir.resolve()
    said = _said(root, arguments)
    secrets, taken = {*_named_secrets(root, said)}, _tracked(root)
    asked = _named_files(root, arguments)
    known = {folder for path in (*taken, *asked) for folder in path.parents}
    reasons: dict[str, list[str]] = {}

    def visit(folder: Path, within: frozenset[Path]) -> None:
        for path in sorted(folder.iterdir()):
            real = Path(os.path.realpath(path))
            why = LINK if real in within else _reason(root, path, real, secrets)
            if why is None and not (real in taken or real in known or asked.intersection((real, *real.parents))):
                why = UNTRACKED
            if why is not None:
                reasons.setdefault(why, []).append(path.relative_to(root).as_posix())
            elif real.is_dir():
                visit(path, within | {real})

    visit(root, frozenset({root}))
    return reasons


def excludes(reasons: dict[str, list[str]]) -> list[str]:
    """Return one pattern of Ray's ``excludes`` for each path that stays here."""
    return ["/" + re.sub(r"([\\*?\[\] !#])", r"\\\1", path) for paths in reasons.values() for path in paths]


def lines(reasons: dict[str, list[str]]) -> list[str]:
    """Say what stays here, for the user."""
    remedies = {why: f"; {REMEDIES[why]}" if why in REMEDIES else "" for why in reasons}
    return [f"left out because {why}: {named(paths)}{remedies[why]}" for why, paths in reasons.items()]


def _tracked(root: Path) -> set[Path]:
    """List the files that git tracks below ``root``, links resolved; none where there is no repository."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--recurse-submodules"]
    plain = os.environ | {"LC_ALL": "C"}  # its messages untranslated
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False, env=plain)
        said = os.fsdecode(done.stderr).strip().partition("\n")[0] if done.returncode else ""
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if "not a git repository" in said:
        return set()
    if said:
        raise ConfigError(f"git does not say which files of {root} a job may take along: {said}")
    return {Path(os.path.realpath(root / os.fsdecode(name))) for name in done.stdout.split(b"\0") if name}


def _named_files(root: Path, arguments: Sequence[str]) -> set[Path]:
    """List files and folders below ``root`` that the command, or a TOML file that it names, has as a text."""
    words = [word.rpartition("=")[2].strip("\"'") for word in arguments]
    words += [text for line in _toml_lines(root, arguments) for text in QUOTED.findall(line)]
    found = {Path(os.path.realpath(root / word)) for word in words if word and "\0" not in word}
    return {path for path in found if path.is_relative_to(root) and path != root}


def _toml_lines(root: Path, arguments: Sequence[str]) -> Iterator[str]:
    for word in arguments:
        file = root / word.rpartition("=")[2]
        if file.suffix == ".toml" and file.is_file():
            yield from file.read_text(encoding="utf-8", errors="replace").splitlines()


def _said(root: Path, arguments: Sequence[str]) -> list[str]:
    pairs = (f"{option} {value}" for option, value in pairwise(arguments) if option.startswith("-"))
    return [*arguments, *pairs, *_toml_lines(root, arguments)]


def _named_secrets(root: Path, said: Sequence[str]) -> Iterator[Path]:
    """Files that the environment, the command or a TOML file that the command names calls secrets."""
    yield from (Path(os.environ[name]).resolve() for name in SECRET_VARIABLES if name in os.environ)
    for line in said:
        if (match := NAMES_SECRET.search(line.split(" #")[0].rstrip())) and "\0" not in match[1]:
            yield (root / match[1].strip()).resolve()


def _reason(root: Path, path: Path, real: Path, secrets: set[Path]) -> str | None:
    """Say why a file or folder may not leave this machine; what a link leads to counts as well as its name."""
    if not real.is_relative_to(root):
        return LINK
    if real in secrets:
        return TOKEN
    if (real / "pyvenv.cfg").is_file():
        return ENVIRONMENT
    for name in (path.relative_to(root), real.relative_to(root)):
        parts = PurePosixPath(name.as_posix().casefold())
        if any(part.startswith(".") for part in parts.parts):
            return HIDDEN
        if "secrets" in parts.parts or (SECRET.search(parts.name) and not HARMLESS.search(parts.name)):
            return LOOKS
    return None
