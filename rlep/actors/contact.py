"""How a run in progress is reached: a file in its directory, there as long as the run takes commands.

It holds no secret: a private cluster's token is in a separate file that only its owner reads.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

CONTACT = "contact.json"


@dataclass(frozen=True, slots=True)
class Contact:
    """How to connect to a run."""

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
    write_private(directory / CONTACT, json.dumps(asdict(contact)) + "\n")


def read_contact(directory: Path) -> Contact | None:
    """Who is to be asked about the run in ``directory``; None where no run takes commands there."""
    try:
        return Contact(**json.loads((directory / CONTACT).read_text()))
    except FileNotFoundError:
        return None


def remove_contact(directory: Path) -> None:
    """The run takes no more commands."""
    (directory / CONTACT).unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600 that appears whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)
