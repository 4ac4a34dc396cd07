"""Draws among a run's own responses: those that a step sees, V_k, and the ones of them that come back.

Both are pure functions of births, seed, step and prompt id: neither the order of insertions nor repeated ones change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlep.core.draws import draw_aged, draw_uniform

Births = Mapping[str, int]
"""Content id → the step whose policy generated the response."""


def seen(births: Births, step: int, *, per_question: int, max_age: int) -> frozenset[str]:
    """V_k of one prompt: the first ``per_question`` by (birth descending, content id ascending) that were born before k.

    Ones that are older than ``max_age`` steps are left out; 0 is any age.
    """
    oldest = step - max_age if max_age else 0
    known = [content_id for content_id, birth in births.items() if oldest <= birth < step]
    if len(known) > per_question:
        known.sort(key=lambda content_id: (-births[content_id], content_id))
    return frozenset(known[:per_question])


def draw_ids(
    candidates: Mapping[str, Sequence[str]],
    count: int,
    *,
    minimum: int,
    seed: int,
    step: int,
    births: Mapping[str, Births] | None = None,
    decay: float = 0.0,
) -> dict[str, list[str]]:
    """Draw ``count`` of each prompt's content ids without replacement; none where there are fewer than ``minimum``.

    Uniformly, or with ``decay`` τ by the weights e^(−age / τ) of their ``births``. ``candidates`` are in ascending order.
    """
    counts = [len(ids) if len(ids) >= minimum else 0 for ids in candidates.values()]
    if not decay or births is None:
        picks, offsets = draw_uniform([*candidates], counts, count, seed=seed, step=step)
        return {
            prompt_id: [ids[pick] for pick in picks[offsets[at] : offsets[at + 1]]]
            for at, (prompt_id, ids) in enumerate(candidates.items())
        }
    chosen: dict[str, list[str]] = {}
    for (prompt_id, ids), enough in zip(candidates.items(), counts, strict=True):
        ages = [step - births[prompt_id][content_id] for content_id in ids[:enough]]
        aged = draw_aged(prompt_id, ages, count, decay=decay, seed=seed, step=step)
        chosen[prompt_id] = [ids[pick] for pick in aged]
    return chosen
