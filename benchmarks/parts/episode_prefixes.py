"""Prefix-cache hits of an episode's later turns in a real vLLM, on CPUs, with a random model of 100k parameters.

64 episodes of up to four turns are played at once: bytes, a turn has about 260 until it happens to say the EOS. What a turn
has in common with the turn before is all that came before its observation. vLLM keeps whole blocks of tokens that it has
computed, which the last sampled one is not: of ``c`` common tokens there can be ``(c − 1) // block · block``. What it took from
its cache is ``num_cached_tokens`` of the request's output. The last line is the share, and the later turns it is of.

The argument is the KV cache's room: 1 for all episodes; with less, those whose answer is awaited lose their blocks to others.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from torch import random as torch_random
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlep.config.schema import Config, ModelConfig
from rlep.core.episodes import Action, Observation
from rlep.core.types import Completion, Prompt, Reissued, Request, Sampling, Verdict
from rlep.driver.wings.episodes import EpisodeGenerators
from rlep.engines.dialogue import Dialogue
from rlep.engines.sampler import requests as sampler_requests
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from rlep.engines.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from benchmarks.parts.episode_step import save_byte_tokenizer
else:  # a script's own directory is where it imports from
    from episode_step import save_byte_tokenizer

EPISODES, TURNS, PROMPT, LIMIT, BLOCK = 64, 4, 200, 2048, 32
TOKEN_BYTES = 2 * 2 * 2 * 32 * 4
"""Of KV cache: two layers, keys and values, two heads of 32 in float32."""
SAID = "That is too small; the next guess? " * 2


class Asking:
    """An environment that always asks again."""

    tools = ()

    async def begin(self, episode: str, columns: str, *, seed: int) -> Observation:
        """See the port."""
        return Observation()

    async def act(self, episode: str, action: Action) -> Observation:
        """See the port."""
        return Observation((SAID,))

    async def end(self, episode: str) -> Verdict | None:
        """See the port."""
        return None


@dataclass(eq=False)
class OneEngine:
    """The ``Generators`` port over one sampler, and the tokens of each turn: asked, sampled, taken from the cache."""

    sampler: Sampler
    turns: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    reissued: Reissued = Reissued()  # noqa: RUF009 - frozen

    async def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        """See the port."""
        asked = {request.id: request for request in requests}
        async for ended in self.sampler.generate(requests, sampling):
            for one in ended:
                request = asked[one.request_id]
                counts = (len(request.tokens), len(one.tokens), CACHED.pop(request.id))
                self.turns.setdefault(request.episode, []).append(counts)
                yield one

    def share(self) -> tuple[float, int]:
        """Tokens that later turns took from the cache, over those that they can; and the later turns."""
        pairs = [pair for turns in self.turns.values() for pair in pairwise(turns)]
        can = sum((asked + sampled - 1) // BLOCK * BLOCK for (asked, sampled, _), _ in pairs)
        return sum(cached for _, (_, _, cached) in pairs) / can, len(pairs)


CACHED: dict[str, int] = {}
"""Request → tokens that vLLM had of it."""


async def play(model: Path, tokenizer: Tokenizer, room: float) -> tuple[float, int]:
    """The share of one round, with ``room`` for so many of the episodes."""
    config = Config().with_values(
        data={"max_prompt_tokens": PROMPT},
        rollout={"max_tokens": LIMIT},
        generator={
            "kv_cache_gib": room * EPISODES * 1200 * TOKEN_BYTES / 2**30,
            "max_sequences": EPISODES,
            "engine": {"block_size": BLOCK, "enable_prefix_caching": True},
        },
    )
    prepare_environment(config)
    sampler = Sampler(model, config)
    await sampler.start(deadline_s=500)
    sampler.serve_base(0)
    engine = OneEngine(sampler)
    words = np.arange(PROMPT, dtype=np.int32)
    wanted = [Request(f"train/0/{n}", f"{n}", np.roll(words, n).copy(), 0, 1000 + n) for n in range(EPISODES)]
    prompts = {request.prompt_id: Prompt(request.prompt_id, "", "", request.tokens, columns="{}") for request in wanted}
    dialogue = Dialogue(tokenizer, observation_tokens=512)
    episodes = EpisodeGenerators(engine, Asking(), dialogue, prompts=prompts, turns=TURNS)
    final = sampler_requests._final

    async def noted(asked: Any, tokens: Any, parameters: Any, request_id: str) -> Any:
        output = await final(asked, tokens, parameters, request_id)
        CACHED[request_id] = output.num_cached_tokens or 0
        return output

    with mock.patch.object(sampler_requests, "_final", noted):
        async for _ in episodes.generate(wanted, Sampling(max_tokens=LIMIT), deadline_s=400):
            pass
    await sampler.close()
    return engine.share()


def main() -> None:
    """Play with the room that the command line tells, and print."""
    with tempfile.TemporaryDirectory() as home:
        model = Path(home)
        save_byte_tokenizer(model)
        tokenizer = load_tokenizer(model, ModelConfig(path=model, chat_template=False))
        with torch_random.fork_rng():
            torch_random.manual_seed(0)
            made = Qwen2ForCausalLM(
                Qwen2Config(
                    vocab_size=len(tokenizer.backend),
                    hidden_size=64,
                    intermediate_size=192,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    num_key_value_heads=2,
                    max_position_embeddings=PROMPT + LIMIT,
                    eos_token_id=tokenizer.eos_id,
                    bos_token_id=None,
                )
            )
        made.save_pretrained(model)
        play_it: Coroutine[Any, Any, tuple[float, int]] = play(model, tokenizer, float(sys.argv[1]))
        print(json.dumps(asyncio.run(play_it)))


if __name__ == "__main__":
    main()
