"""``loss.temperature = "rollout"`` on a real vLLM: log-probs of the distribution that is drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlep.core.types import Sampling
from rlep.engines.sampler.engine import Sampler, prepare_environment
from tests.engines.sampler.sampler_cases import CONTEXT, build_model, config_of, requests, sequence, true_logprobs


@pytest.mark.parametrize("temperature", [0.6, 1.0])
async def test_log_probs_are_at_the_temperature_and_scores_are_not(
    temperature: float, environment: None, tmp_path: Path
) -> None:
    model = build_model(tmp_path, tied=True)
    config = config_of().with_values(loss={"temperature": "rollout"}, rollout={"temperature": temperature})
    prepare_environment(config)
    sampler = Sampler(tmp_path, config)
    try:
        await sampler.start(deadline_s=500)
        sampler.serve_base(0)
        wanted = {request.id: request for request in requests(16)}
        sampling = Sampling(temperature=temperature, max_tokens=24)
        found = [c async for batch in sampler.generate(list(wanted.values()), sampling) for c in batch]
        assert len(found) == len(wanted)
        for completion in found:
            prompt = wanted[completion.request_id].tokens
            whole = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))[None]
            with torch.no_grad():
                logits = model(whole).logits[0, len(prompt) - 1 : -1].double() / temperature
            chosen = logits.log_softmax(-1).gather(1, whole[0, len(prompt) :, None])[:, 0]
            np.testing.assert_allclose(completion.logprobs, chosen.float(), atol=1e-4)
        # The check of a publication compares scores, with the learner's at temperature 1.
        prompt, response = sequence(8, CONTEXT - 9, 7)
        (scores,) = await sampler.score([(prompt, response)])
        np.testing.assert_allclose(scores, true_logprobs(model, prompt, response), atol=1e-4)
    finally:
        await sampler.close()
