"""The pool of a run that ``write_run`` wrote: what the run drew from, and texts that others could have written."""

from __future__ import annotations

import numpy as np

from rlep.core.types import Prompt, Provenance, Sampling, Trajectory, Verdict
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool
from rlep.services.pool.values import PoolOptions
from tests.unit.driver.driver_values import TOKENIZER, answer_of, prompt_set
from tests.unit.view.console_scene import ATTACK


def fill(server: EmbeddedRedis) -> None:
    """Four answers to each question, and a hostile one to the first."""
    with opened(server, "pool", TOKENIZER) as pool:
        pool.add([answer_of(prompt, n) for prompt in asked() for n in range(4)])
        pool.add([_hostile(prompt) for prompt in asked()[:1]])


def asked() -> tuple[Prompt, ...]:
    """The questions that the run trains on."""
    return prompt_set(10, prefix=ATTACK).prompts


def opened(server: EmbeddedRedis, name: str, tokenizer: str, **options: object) -> Pool:
    """A pool of the server."""
    return Pool.open(
        server.url,
        name,
        tokenizer_digest=tokenizer,
        password_file=server.password_file,
        options=PoolOptions(**options),  # type: ignore[arg-type]
    )


def _hostile(prompt: Prompt) -> Trajectory:
    verdict, text = Verdict("correct", ATTACK, ATTACK, "1"), np.array([1, 2], np.int32)
    origin = Provenance(ATTACK, 0, TOKENIZER, Sampling())
    return Trajectory(prompt.id, text, None, "stop", verdict, origin, 0.0, ATTACK)
