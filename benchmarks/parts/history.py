"""The history of a run, checked from its rollout files: what a fault must never do, whichever it was."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

COLUMNS = (
    *("group", "member", "prompt_id", "content_id", "replayed", "status", "reward", "advantage", "tokens"),
    *("policy_version", "oldest_version"),
)
Row = Mapping[str, Any]


def read_steps(rollouts: Path) -> dict[int, list[dict[str, Any]]]:
    """The trajectories of every step that has a file, in the order of groups and members."""
    files = sorted(rollouts.glob("step-??????.parquet"))
    return {int(file.stem[5:]): pyarrow.parquet.read_table(file, columns=list(COLUMNS)).to_pylist() for file in files}


def faults_of(steps: Mapping[int, Sequence[Row]], *, prompts: int, fresh: int, most_replays: int) -> list[str]:
    """What is wrong in a synchronous run with live replay: a line each, none for a right one.

    Every step has ``prompts`` groups, each with ``fresh`` responses of this step's policy and at most ``most_replays``
    others. A replay was a fresh, correct response to the same question in an earlier step, and is in its group once.
    Rewards follow verdicts, so that no crash of a verifier gives one.
    """
    found: list[str] = []
    solved: dict[str, set[str]] = defaultdict(set)
    for step in range(max(steps, default=-1) + 1):
        if step not in steps:
            found.append(f"step {step}: no rollout file")
            continue
        groups: dict[int, list[Row]] = defaultdict(list)
        for row in steps[step]:
            groups[row["group"]].append(row)
        if len(groups) != prompts:
            found.append(f"step {step}: {len(groups)} groups, not {prompts}")
        for number, rows in groups.items():
            found += [f"step {step}, group {number}: {fault}" for fault in _of_group(rows, step, fresh, most_replays)]
            replays = {row["content_id"] for row in rows if row["replayed"]}
            if unknown := replays - solved[rows[0]["prompt_id"]]:
                found.append(f"step {step}, group {number}: replays {sorted(unknown)}, never seen correct before")
        for row in steps[step]:
            if not row["replayed"] and row["status"] == "correct":
                solved[row["prompt_id"]].add(row["content_id"])
    return found


def _of_group(rows: Sequence[Row], step: int, fresh: int, most_replays: int) -> Iterable[str]:
    own, replays = ([row for row in rows if row["replayed"] == replayed] for replayed in (False, True))
    if len({row["prompt_id"] for row in rows}) != 1:
        yield "more than one question"
    if sorted(row["member"] for row in rows) != list(range(len(rows))):
        yield f"members {sorted(row['member'] for row in rows)}"
    if len(own) != fresh:
        yield f"{len(own)} fresh responses, not {fresh}"
    if len(replays) > most_replays:
        yield f"{len(replays)} replays, at most {most_replays} are asked for"
    if versions := {row[name] for row in own for name in ("policy_version", "oldest_version")} - {step}:
        yield f"fresh responses of versions {sorted(versions)}"
    twice = [name for name, times in Counter(row["content_id"] for row in replays).items() if times > 1]
    if twice:
        yield f"replays {twice} twice"
    for row in rows:
        if (row["status"] == "correct") != (row["reward"] > 0) or (row["replayed"] and row["status"] != "correct"):
            yield f"member {row['member']}: {row['status']}, reward {row['reward']}"


def first_difference(one: Mapping[int, Sequence[Row]], other: Mapping[int, Sequence[Row]]) -> tuple[int, str] | None:
    """Step and column in which two runs of one configuration differ first; None where they are equal to the last common step."""
    for step in range(min(len(one), len(other))):
        for name in COLUMNS:
            if [row[name] for row in one[step]] != [row[name] for row in other[step]]:
                return step, name
    return None
