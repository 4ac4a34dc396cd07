"""Steps at which a trainer may resume, by the checkpoints in its folder."""

from __future__ import annotations

import re
from pathlib import Path


def oldest_checkpoint(folder: Path, name: str, step: int, part: str = ".") -> int:
    """The oldest step at which a run may go on: that of a checkpoint in a folder, called ``name`` and its step, or ``step``.

    Old checkpoints may have lost the ``part`` without which no run goes on. Where none has it, it lies on other nodes: all count.
    """
    found = {
        int(match[1]): (path / part).exists()
        for path in folder.glob(f"{name}*")
        if (match := re.fullmatch(rf"{re.escape(name)}(\d+)", path.name))
    }
    return min([step, *(at for at, has in found.items() if has or not any(found.values()))])
