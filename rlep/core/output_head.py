"""Memory of the output head's float32 logits, by device: what the learner computes with and a plan counts."""

from __future__ import annotations

CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""Largest fp32 logits matrix held at once, in bytes; about three of this size live in the backward pass.

On a CPU a chunk and the passes over it stay in the cache. On a GPU a chunk has to have some hundred rows, so that the matrix
products are bound by arithmetic rather than by reading the output embedding again for each chunk.
"""

KEPT_BYTES = {"cpu": 256 * 2**20, "cuda": 0}
"""Probabilities of the first rows are kept up to this size; the backward pass computes only the others again."""
