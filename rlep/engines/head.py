"""Log-probs of chosen tokens straight from hidden states: one chunk of ``[tokens, vocabulary]`` logits at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""Largest fp32 logits matrix held at once, in bytes, by device; about three of this size live in the backward pass.

On a CPU a chunk and the passes over it stay in the cache. On a GPU a chunk has to have some hundred rows, so that the matrix
products are bound by arithmetic rather than by reading the output embedding again for each chunk.
"""

_KEPT_BYTES = {"cpu": 256 * 2**20, "cuda": 0}
"""Exponentials of the first rows' logits are kept up to this size; the backward pass computes only the others again."""


def token_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, *, entropy: bool) -> tuple[Tensor, Tensor]:
    """Log-softmax in fp32 of ``hidden @ weight.T``, gathered at ``targets``.

    Args:
        hidden: ``[R, d]``.
        weight: output embedding ``[V, d]``.
        targets: int64 ``[R]``.
        entropy: whether the entropy of each distribution is wanted too; the backward pass pays only for one in the loss.

    Returns:
        Log-probs fp32 ``[R]`` and entropies fp32 ``[R]`` (``[0]`` unless wanted), both differentiable.
    """
    logprobs, entropies = _ChunkedLogprobs.apply(hidden, weight, targets, entropy)
    return logprobs, entropies


def _chunk_rows(weight: Tensor) -> int:
    return max(1, _CHUNK_BYTES[weight.device.type] // (4 * weight.shape[0]))


class _ChunkedLogprobs(torch.autograd.Function):
    """d log p_t / dz = 1[t] - p, and dH / dz = -p (log p + H); with a gradient of H all logits are computed again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # the gradient of entropies that are only looked at is None, not zeros
        count, chunk = len(targets), _chunk_rows(weight)
        logprobs = hidden.new_empty(count, dtype=torch.float32)
        normalisers, totals = torch.empty_like(logprobs), torch.empty_like(logprobs)
        entropies = hidden.new_empty(count if entropy else 0, dtype=torch.float32)
        room = _KEPT_BYTES[weight.device.type] // (4 * len(weight)) if any(ctx.needs_input_grad) else 0
        kept = hidden.new_empty(min(count, room // chunk * chunk), len(weight), dtype=torch.float32)
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            logits = (hidden[rows] @ weight.t()).float()  # [C, V]
            chosen = logits.gather(1, targets[rows].unsqueeze(1)).squeeze(1)
            largest = logits.amax(1)
            differences = logits.sub_(largest.unsqueeze(1))
            powers = torch.exp(differences, out=kept[rows]) if start < len(kept) else differences.exp()
            total = totals[rows] = powers.sum(1)
            normalisers[rows] = total.log() + largest
            logprobs[rows] = chosen - normalisers[rows]
            if entropy:
                entropies[rows] = total.log() - differences.mul_(powers).sum(1) / total
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropies, totals, kept)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets, normalisers, entropies, totals, kept = ctx.saved_tensors
        upstream = (torch.zeros_like(normalisers) if grads[0] is None else grads[0]).unsqueeze(1)  # [R, 1]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        chunk = _chunk_rows(weight)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            at = targets[rows].unsqueeze(1)
            if grads[1] is None:
                # Scaling [C, d] is cheaper than [C, V].
                if start < len(kept):
                    mass, grad_logits = totals[rows].unsqueeze(1), kept[rows]
                else:
                    mass = torch.ones_like(upstream[rows])
                    grad_logits = _log_probs(hidden[rows], weight, normalisers[rows]).exp_()
                scale = -upstream[rows] / mass
                grad_logits.scatter_add_(1, at, -mass)
            else:
                scores, scale = _log_probs(hidden[rows], weight, normalisers[rows]), torch.ones_like(upstream[rows])
                probs = scores.exp()
                factor = (
                    scores.add_(entropies[rows].unsqueeze(1)).mul_(grads[1][rows].unsqueeze(1)).add_(upstream[rows])
                )
                grad_logits = probs.mul_(factor).neg_().scatter_add_(1, at, upstream[rows])
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[rows] = (grad_logits @ weight) * scale
            _add_product(grad_weight, grad_logits.t(), (hidden[rows] * scale).to(hidden.dtype))
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _log_probs(hidden: Tensor, weight: Tensor, normalisers: Tensor) -> Tensor:
    """fp32 ``[C, V]``"""
    return (hidden @ weight.t()).float().sub_(normalisers.unsqueeze(1))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``, summed in the type of ``total``."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
