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
        arm_rows(whole), tuning_rows(whole), comparison_rows(whole), notes_of(whole)
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
    between = _between(whole)
    shares = all("lost_share" in row for arm in whole["arms"] for row in arm["seeds"].values())
    rows = [_base_row(base, between) for base in whole.get("bases", ())]
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
                **({"lost %": mean("lost_share")} if shares else {"lost": mean("lost", 1, 1)}),
                "tuned": json.dumps(arm["tuned"]) if "tuned" in arm else "",
            }
        )
    return rows


def _base_row(base: Mapping[str, Any], between: Sequence[str]) -> dict[str, str]:
    """The base model's row; an arm's last evaluation may have more samples."""
    chances = {f"pass@{k} %": mean_of([base["pass_at"][k]] if k in base["pass_at"] else []) for k in between}
    shown = {"seeds": "", "area %": "", "final %": mean_of([base["final"]])} | chances
    whole = {"pass@n %": mean_of([base["pass"]]), "distinct": "", "lost %": "", "tuned": ""}
    return {"arm": f"{base['name']}, {counted(base['samples'], 'sample')}", **shown, **whole}


def mean_of(values: Sequence[float], scale: float = 100, digits: int = 1) -> str:
    """A cell; empty without values."""
    return f"{scale * np.mean(values):.{digits}f}" if values else ""


def _between(whole: Mapping[str, Any]) -> list[str]:
    """Every k above 1 and below n that all runs have; none where an older version wrote them."""
    found = [set(row.get("pass_at", ())) for arm in whole["arms"] for row in arm["seeds"].values()]
    return sorted(set.intersection(*found) - {"1"}, key=int)[:-1] if found else []


def tuning_rows(whole: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each value that tuning tried: means over its seeds; none where an older version wrote them."""
    tried: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in whole.get("tuning", ()):
        tried.setdefault((row["arm"], json.dumps(row["values"])), []).append(row)
    shared = set.intersection(*(set(row["pass_at"]) for rows in tried.values() for row in rows)) if tried else set()
    return [
        {
            "arm": arm,
            "tried": values,
            "seeds": f"{len(rows)}",
            **{f"pass@{k} %": mean_of([row["pass_at"][k] for row in rows]) for k in sorted(shared, key=int)},
        }
        for (arm, values), rows in tried.items()
    ]


def comparison_rows(whole: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each comparison, in points; without interval and p where it has one seed. What is a claim is not said twice."""
    rows, samples = [], {row["samples"] for arm in whole["arms"] for row in arm["seeds"].values() if "samples" in row}
    twice = len(samples) == 1 and f"pass@{min(samples)}" in whole.get("claims", ())
    for row in whole["comparisons"]:
        if twice and row["endpoint"] == "pass":
            continue
        found, several = row["paired"], len(row["paired"]["by_seed"]) > 1
        rows.append(
            {
                "endpoint": "pass@n" if row["endpoint"] == "pass" else row["endpoint"],
                "arm": row["arm"],
                "against": row["control"],
                "difference": f"{100 * found['mean']:+.2f}",
                "95 %": _interval(found["low"], found["high"]) if several else _interval(None, None),
                **({"t over seeds": _interval(found["t_low"], found["t_high"])} if "t_low" in found else {}),
                "by seed": ", ".join(f"{100 * difference:+.2f}" for difference in found["by_seed"]),
                "p": f"{found['p']:.3g}" if several else "–",
                **({"by base": _by_base(row["by_base"])} if row.get("by_base") else {}),
                "p (Holm)": "" if row["p_holm"] is None or not several else f"{row['p_holm']:.3g}",
            }
        )
    return rows


def _interval(low: float | None, high: float | None) -> str:
    return "one seed" if low is None or high is None else f"{100 * low:+.2f} … {100 * high:+.2f}"


def _by_base(means: Mapping[str, float]) -> str:
    return ", ".join(f"{base} {100 * mean:+.2f}" for base, mean in means.items())
