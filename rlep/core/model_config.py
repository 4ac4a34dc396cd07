"""A model directory's ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlep.core.errors import ModelError


def read_config(model: Path) -> dict[str, Any]:
    """Content of ``config.json``; of a model of several parts also that of the one for text alone, where the whole says nothing.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    path = model / "config.json"
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        own = {name: value for name, value in stated.items() if value is not None}
        return {**stated, **(stated.get("text_config") or {}), **own}
    except FileNotFoundError:
        raise ModelError(f"{model}: no config.json, so this is not a model directory") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error!r}") from None
