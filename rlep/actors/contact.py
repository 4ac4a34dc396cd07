"""The file by which a run in progress is reached, in its directory as long as the run takes commands.

It holds no secret: a private cluster's token is in a separate file that only its owner reads. A run directory may come
from anybody (an archive, a shared disk), and whoever answers at a Ray address runs code in the process that asks. So the
file in a run directory only names a private cluster; the same file in that cluster's private directory confirms it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rlep.core.errors import ConfigError
from rlep.core.files import write_whole
from rlep.core.paths import check_own, read_own

CONTACT = "contact.json"
TOKEN = "token"
_LARGEST = 1 << 16
"""Bytes of a contact or token that is read."""
_LONGEST = 4096
_LOOPBACK = re.compile(r"127\.0\.0\.1:[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Contact:
    """Address and token of a run."""

    run: str
    address: str
    """``host:port`` of the Ray cluster's control service."""
    host: str
    """The machine the driver runs on."""
    token_file: str | None
    """The token of a private cluster, on ``host``; None where the cluster has its own."""


def write_contact(directory: Path, contact: Contact) -> None:
    """Write the file, readable by its owner."""
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / CONTACT, json.dumps(asdict(contact)) + "\n", private=True, shared=True)


def read_contact(directory: Path) -> Contact | None:
    """Read the contact of the run in ``directory``; None where no run takes commands there.

    Raises ``ConfigError`` for a directory or file that is not this user's alone, a link, and what is no contact.
    """
    path = directory / CONTACT
    try:
        text = read_own(path, most=_LARGEST)
        owner = directory.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if owner != os.geteuid():
        raise ConfigError(f"{directory} belongs to user {owner}, not to you: it is not trusted")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    names = {field.name for field in fields(Contact)}
    if not isinstance(tree, dict) or tree.keys() != names or not all(_is_text(tree[name], name) for name in names):
        raise ConfigError(f"{path} is no contact of a run: it has {', '.join(sorted(names))}, each a short text")
    return Contact(**tree)


def check_private(contact: Contact, run: Path) -> None:
    """Check that the private cluster of a contact is one that ``rlep`` made for this user, before anything of it is used.

    The address is loopback; the token lies in a directory that ``rlep`` makes for a cluster (place, name, owner, mode); and
    the contact in that directory is the same. Raises ``ConfigError`` saying what is not so.
    """
    where, token = run / CONTACT, Path(contact.token_file or "")
    if not _LOOPBACK.fullmatch(contact.address):
        raise ConfigError(f"{where} names {contact.address}: a private cluster is at 127.0.0.1, so it is not trusted")
    home, places = token.parent, (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108 - owner and mode are checked
    own = re.fullmatch(rf"rlep-ray-{os.getuid()}-[0-9]+-[A-Za-z0-9_]+", home.name)
    if token.name != TOKEN or not own or home.parent not in places:
        raise ConfigError(
            f"{where} names the token file {token}, which is not in a directory that rlep makes for a private cluster "
            f"({places[0]}/rlep-ray-{os.getuid()}-…): it is not trusted. If the run has another TMPDIR, set it here, too"
        )
    try:
        held = home.lstat()
        read_own(token, most=_LARGEST, others=0o077)
    except OSError as error:
        raise ConfigError(f"{run} was killed: its token {token} cannot be read ({error.strerror})") from None
    if not stat.S_ISDIR(held.st_mode):
        raise ConfigError(f"{home} is a link, which is not followed")
    check_own(home, held, others=0o077)
    if read_contact(home) != contact:
        raise ConfigError(
            f"{where} and {home / CONTACT} differ: it was changed since the run wrote it, and is not trusted"
        )


def _is_text(value: object, name: str) -> bool:
    if value is None:
        return name == "token_file"
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST


def remove_contact(directory: Path) -> None:
    """Remove the file: the run takes no more commands."""
    (directory / CONTACT).unlink(missing_ok=True)
