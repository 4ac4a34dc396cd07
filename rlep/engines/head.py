"""Log-probs of chosen tokens straight from hidden states: the ``[tokens, vocabulary]`` logits exist one chunk at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_BYTES = 64 * 2**20
"""Largest fp32 logits matrix held at once, in bytes (about three of this size live in the backward pass)."""


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
    return max(1, _CHUNK_BYTES // (4 * weight.shape[0]))


class _ChunkedLogprobs(torch.autograd.Function):
    """d log p_t / dz = 1[t] - p, and dH / dz = -p (log p + H); logits are computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # the gradient of entropies that are only looked at is None, not zeros
        count, chunk = len(targets), _chunk_rows(weight)
        logprobs = hidden.new_empty(count, dtype=torch.float32)
        normalisers = torch.empty_like(logprobs)
        entropies = hidden.new_empty(count if entropy else 0, dtype=torch.float32)
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            logits = (hidden[rows] @ weight.t()).float()  # [C, V]
            chosen = logits.gather(1, targets[rows].unsqueeze(1)).squeeze(1)
            normalisers[rows] = logits.logsumexp(1)
            logprobs[rows] = chosen - normalisers[rows]
            if entropy:
                probs = (logits - normalisers[rows].unsqueeze(1)).exp_()
                entropies[rows] = normalisers[rows] - probs.mul_(logits).sum(1)
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets, normalisers, entropies = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(normalisers) if grads[0] is None else grads[0]
        grad_entropies = grads[1]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        chunk = _chunk_rows(weight)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            upstream = grad_logprobs[rows].unsqueeze(1)  # [C, 1]
            scores = (hidden[rows] @ weight.t()).float().sub_(normalisers[rows].unsqueeze(1))  # log p, [C, V]
            probs = scores.exp()
            if grad_entropies is not None:
                scale = grad_entropies[rows].unsqueeze(1)
                factor = scores.add_(entropies[rows].unsqueeze(1)).mul_(scale).add_(upstream)
            else:
                factor = upstream
            grad_logits = probs.mul_(factor).neg_().scatter_add_(1, targets[rows].unsqueeze(1), upstream)
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[rows] = grad_logits @ weight
            grad_weight += grad_logits.t() @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None
