"""Keys that rollout, evaluation and collection share: the distribution that each token is drawn from."""

from __future__ import annotations

from pydantic import Field

from rlep.config.section import Count, Section


class SamplingConfig(Section):
    """Distribution of a response's tokens."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus: smallest set of tokens with this much probability; 1 keeps all."""
    top_k: Count = 0
    """Most probable tokens kept; 0 keeps all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Tokens of less than this share of the most probable one's probability are left out; 0 keeps all."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Above 1, tokens that the prompt or the response has already become less probable; 1 is off."""
