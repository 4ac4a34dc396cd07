"""The rows of a study's tables, from its ``study.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlep.core.errors import DataError
from rlep.core.plural import counted


def read_report(path: Path) -> dict[str, Any]:
    """A ``study.json``, checked as far as its tables need. Raises ``DataError``."""
    try:
        whole = json.loads(path.read_bytes())
        arm_rows(whole), comparison_rows(whole), notes_of(whole)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise DataError(f"{path} has no arms and comparisons as a study.json has them: {error!r:.200}") from None
    return dict(whole)


def notes_of(whole: Mapping[str, Any]) -> list[str]:
    """Parts of a study that are missing or cannot be told from it, in words."""
    notes = [
        f"{arm['name']}, seed {seed}: failed at {why['phase']}: {why['reason']}"
        for arm in whole["arms"]
        for seed, why in arm["failed"].items()
    ]
    notes += [
        f"{arm['name']}, seed {seed}: its phases took {row['compute'] / whole['budget']:.2f} of the budget; its last accuracy is "
        "taken for the rest"
        for arm in whole["arms"]
        for seed, row in arm["seeds"].items()
        if row["short"]
    ]
    return [*notes, *map(str, whole["notes"]), *single_seed(whole)]


def single_seed(whole: Mapping[str, Any]) -> list[str]:
    """A sentence where two arms have one seed in common, which tells nothing of another."""
    alone = sum(len(row["paired"]["by_seed"]) == 1 for row in whole["comparisons"])
    if not alone:
        return []
    some = (
        "every difference is"
        if alone == len(whole["comparisons"])
        else f"{counted(alone, 'difference')} of one seed are"
    )
    return [f"{some} that of two runs: one seed has no interval over seeds and no p; two or more in study.seeds have"]


def arm_rows(whole: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each arm: means over its seeds."""
    rows, between = [], _between(whole)
    for arm in whole["arms"]:
        found = [*arm["seeds"].values()]

        def mean(name: str, scale: float = 100, digits: int = 1, found: Sequence[Mapping[str, float]] = found) -> str:
            return mean_of([row[name] for row in found], scale, digits)

        rows.append(
            {
                "arm": arm["name"] + (" (control)" if arm["control"] else ""),
                "seeds": f"{len(found)}" + (f", {len(arm['failed'])} failed" if arm["failed"] else ""),
                "area %": mean("area"),
                "final %": mean("final"),
                **{f"pass@{k} %": mean_of([row["pass_at"][k] for row in found]) for k in between},
                "pass@n %": mean("pass"),
                "distinct": mean("distinct", 1, 2),
                "lost": mean("lost", 1, 1),
                "tuned": json.dumps(arm["tuned"]) if "tuned" in arm else "",
            }
        )
    return rows


def mean_of(values: Sequence[float], scale: float = 100, digits: int = 1) -> str:
    """A cell; empty without values."""
    return f"{scale * np.mean(values):.{digits}f}" if values else ""


def _between(whole: Mapping[str, Any]) -> list[str]:
    """Every k above 1 and below n that all runs have; none where an older version wrote them."""
    found = [set(row.get("pass_at", ())) for arm in whole["arms"] for row in arm["seeds"].values()]
    return sorted(set.intersection(*found) - {"1"}, key=int)[:-1] if found else []


def comparison_rows(whole: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each comparison, in points; without interval and p where it has one seed."""
    rows = []
    for row in whole["comparisons"]:
        found, several = row["paired"], len(row["paired"]["by_seed"]) > 1
        rows.append(
            {
                "endpoint": "pass@n" if row["endpoint"] == "pass" else row["endpoint"],
                "arm": row["arm"],
                "against": row["control"],
                "difference": f"{100 * found['mean']:+.2f}",
                "95 %": f"{100 * found['low']:+.2f} … {100 * found['high']:+.2f}" if several else "one seed",
                "by seed": ", ".join(f"{100 * difference:+.2f}" for difference in found["by_seed"]),
                "p": f"{found['p']:.3g}" if several else "–",
                "p (Holm)": "" if row["p_holm"] is None or not several else f"{row['p_holm']:.3g}",
            }
        )
    return rows
