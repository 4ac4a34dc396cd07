"""Keys that rollout, evaluation and collection share: the distribution that each token is drawn from."""

from __future__ import annotations

from pydantic import Field, field_validator

from rlep.config.section import Count, Section

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM samples at the first where less is asked for, greedy apart, and refuses more than the second."""


class SamplingConfig(Section):
    """Distribution of a response's tokens."""

    temperature: float = Field(1.0, gt=0, le=MOST_TEMPERATURE)
    """Sampling temperature, 0.01 to 2."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus: smallest set of tokens with this much probability; 1 keeps all."""
    top_k: Count = 0
    """Most probable tokens kept; 0 keeps all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Tokens of less than this share of the most probable one's probability are left out; 0 keeps all."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Above 1, tokens that the prompt or the response has already become less probable; 1 is off."""

    @field_validator("temperature")
    @classmethod
    def _as_asked(cls, temperature: float) -> float:
        if 0 < temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"vLLM would sample at {LEAST_TEMPERATURE:g}; set it to that, or take only the best with top_k = 1"
            )
        return temperature
