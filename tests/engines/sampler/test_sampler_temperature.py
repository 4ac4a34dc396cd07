"""``loss.temperature = "rollout"`` on a real vLLM: log-probs of the distribution that is drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rlep.core.types import Float32Array, Int32Array, Sampling
from rlep.engines.sampler.engine import Sampler
from rlep.engines.sampler.setup import prepare_environment
from tests.engines.sampler.sampler_cases import CONTEXT, build_model, config_of, requests, sequence, true_logprobs


def logits_of(model: torch.nn.Module, prompt: Int32Array, response: Int32Array) -> torch.Tensor:
    """Logits of every token of ``response``, ``[T, V]``."""
    whole = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
    with torch.no_grad():
        logits: torch.Tensor = model(whole).logits[0, len(prompt) - 1 : -1].double()
    return logits


def chosen(logits: torch.Tensor, response: Int32Array) -> Float32Array:
    """Log-probs of ``response`` by its logits."""
    rows = logits.log_softmax(-1).gather(1, torch.from_numpy(response.astype(np.int64))[:, None])
    return rows[:, 0].float().numpy()


async def test_log_probs_are_of_the_distribution_that_is_drawn_from_and_scores_are_not(
    environment: None, tmp_path: Path
) -> None:
    model = build_model(tmp_path, tied=True)
    config = config_of().with_values(loss={"temperature": "rollout"}, rollout={"temperature": 0.6})
    prepare_environment(config)
    sampler = Sampler(tmp_path, config)
    try:
        await sampler.start(deadline_s=500)
        sampler.serve_base(0)
        wanted = {request.id: request for request in requests(16)}
        for sampling in (
            Sampling(temperature=0.6, max_tokens=24),
            Sampling(temperature=1.0, max_tokens=24),
            Sampling(temperature=1.3, max_tokens=24),
            Sampling(temperature=0.6, min_p=0.2, max_tokens=24),
            Sampling(temperature=0.0, max_tokens=24),  # of an evaluation: as at temperature 1
        ):
            found = [c async for batch in sampler.generate(list(wanted.values()), sampling) for c in batch]
            assert len(found) == len(wanted)
            for completion in found:
                logits = logits_of(model, wanted[completion.request_id].tokens, completion.tokens)
                logits = logits / (sampling.temperature or 1.0)
                kept = logits >= logits.max(-1, keepdim=True).values + np.log(sampling.min_p or 1e-300)
                logits = logits.masked_fill(~kept, -torch.inf)
                np.testing.assert_allclose(completion.logprobs, chosen(logits, completion.tokens), atol=1e-4)
        # The check of a publication compares scores, with the learner's at temperature 1.
        prompt, response = sequence(8, CONTEXT - 9, 7)
        (scores,) = await sampler.score([(prompt, response)])
        np.testing.assert_allclose(scores, true_logprobs(model, prompt, response), atol=1e-4)
    finally:
        await sampler.close()
