"""Sequences of the log-prob check."""

from __future__ import annotations

import numpy as np

from rlep.core.types import Prompt
from rlep.launch.roles import probes_of


def test_the_longest_of_the_first_64_prompts_are_cut_in_halves() -> None:
    lengths = [*range(1, 64), 200, 300]
    prompts = [Prompt(f"p{n}", "question", "1", np.arange(n, dtype=np.int32)) for n in lengths]
    probes = probes_of(prompts)
    assert [(len(given), len(scored)) for given, scored in probes] == [(100, 100), (31, 32), (31, 31), (30, 31)]
    assert np.concatenate(probes[1]).tolist() == list(range(63))


def test_a_prompt_of_one_token_has_no_second_half() -> None:
    assert probes_of([Prompt("p", "question", "1", np.zeros(1, np.int32))]) == []
