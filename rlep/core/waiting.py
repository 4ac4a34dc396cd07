"""Waits on tasks."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T", bound="asyncio.Future[Any]")


def silence(task: T) -> T:
    """Return a task whose error may go unlooked at: asyncio would print it, though whoever awaits the task has it."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
