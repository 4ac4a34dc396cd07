"""``rlep tasks …``: procedural tasks of reasoning-gym as data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlep.cli.shell import command_errors
from rlep.core.errors import ConfigError
from rlep.core.plural import counted

tasks_app = typer.Typer(
    help="Procedural tasks of reasoning-gym as data sets; needs rlep's extra named tasks.", no_args_is_help=True
)
_SUFFIXES = (".parquet", ".jsonl")
FORMAT = "Give your final answer between <answer> and </answer>."
"""Ends every question: what the profile ``reasoning-gym`` reads."""


@tasks_app.command("list")
@command_errors
def list_tasks() -> None:
    """Print the name of every task, what it asks, and why it is refused where it is."""
    from rlep.services.verifier.gym import REFUSED
    from rlep.services.verifier.gym_tasks import description_of, task_names

    width = max(map(len, task_names()))
    for name in task_names():
        said = f"refused: {REFUSED[name]}" if name in REFUSED else description_of(name)
        typer.echo(f"{name:<{width}}  {said}")


@tasks_app.command("make")
@command_errors
def make_task(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from rlep tasks list.")],
    size: Annotated[int, typer.Option(min=1, help="Questions to make; repeated ones are left out.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed: equal seeds make equal files.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .parquet or .jsonl file in verl's schema.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the task; may be repeated.")
    ] = None,
) -> None:
    """Write questions of one task with their entries as references, for verifier.profile reasoning-gym."""
    from rlep.cli.progress import TerminalProgress
    from rlep.core.types import Message
    from rlep.data.prompt_files import write_verl
    from rlep.data.prompt_rows import PromptRow
    from rlep.services.verifier.gym_tasks import make

    if out.suffix not in _SUFFIXES:
        raise ConfigError(f"--out {out}: a data set is a .parquet or .jsonl file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}")
    with TerminalProgress() as bars, bars.phase("make", size, "questions") as advance:
        made = make(name, size=size, seed=seed, settings=_parsed(settings or []), advance=advance)
    if not made.entries:
        raise ConfigError(f"task {name}: no question is left of {size}")
    rows = (
        PromptRow((Message("user", f"{json.loads(entry)['question'].strip()}\n\n{FORMAT}"),), entry, name)
        for entry in made.entries
    )
    count = write_verl(out, rows, split="train", ability=name)
    left_out = [(made.repeated, "repeated"), (made.disputed, "whose own reference is not correct")]
    typer.echo(
        ", ".join([f"{out}: {counted(count, 'question')}", *(f"{n:,} {why} left out" for n, why in left_out if n)])
    )


def _parsed(settings: list[str]) -> dict[str, object]:
    """Values as JSON where they are JSON, else as text."""
    found: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {setting}: expected KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
