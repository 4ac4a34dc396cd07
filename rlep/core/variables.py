"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(changes: Mapping[str, str], *, replace: bool = True) -> Iterator[None]:
    """The process's environment with ``changes`` within the block, and as it was after it.

    Without ``replace`` a variable that is set already keeps its value.
    """
    before = {name: os.environ.get(name) for name in changes if replace or name not in os.environ}
    os.environ.update({name: changes[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
