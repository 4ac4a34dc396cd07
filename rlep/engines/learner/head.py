"""Log-probs of chosen tokens straight from hidden states: one chunk of ``[tokens, vocabulary]`` logits at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rlep.core.output_head import CHUNK_BYTES, KEPT_BYTES

_WIDE_SUMS = ("cuda",)
"""Devices that multiply half-precision matrices into fp32 ones."""

_SURE = 1e-30
"""Of probabilities above it the logarithm is exact enough; fp32 holds smaller ones with fewer digits or not at all."""

_spare: dict[torch.device, Tensor] = {}
"""Memory for what is kept, of the last backward pass: a system takes and clears so large a block slower than it is filled."""


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, entropy: bool, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-softmax in fp32 of ``hidden @ weight.T / temperature``, gathered at ``targets``.

    Args:
        hidden: ``[R, d]``.
        weight: output embedding ``[V, d]``.
        targets: int64 ``[R]``.
        entropy: whether the entropy of each distribution is wanted too; the backward pass pays only for one in the loss.

    Returns:
        Log-probs fp32 ``[R]`` and entropies fp32 ``[R]`` (``[0]`` unless wanted), both differentiable.
    """
    trained = torch.is_grad_enabled()  # weights want gradients whether there is a backward pass or not
    logprobs, entropies = _ChunkedLogprobs.apply(hidden, weight, targets, entropy, trained, temperature)
    return logprobs, entropies


def _chunk_rows(weight: Tensor) -> int:
    return max(1, CHUNK_BYTES[weight.device.type] // (4 * weight.shape[0]))


class _ChunkedLogprobs(torch.autograd.Function):
    """d log p_t / dz = 1[t] - p, and dH / dz = -p (log p + H); with a gradient of H all logits are computed again.

    z are logits over the temperature, by which gradients of logits are divided therefore.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        hidden, weight, targets, entropy, trained, temperature = given
        ctx.set_materialize_grads(False)  # the gradient of entropies that are only looked at is None, not zeros
        count, chunk = len(targets), _chunk_rows(weight)
        logprobs = hidden.new_empty(count, dtype=torch.float32)
        normalisers = torch.empty_like(logprobs)
        entropies = hidden.new_empty(count if entropy else 0, dtype=torch.float32)
        memory, kept = _memory(weight, count, chunk) if trained else (None, logprobs.new_empty(0))
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], weight, temperature)
            probs = torch.softmax(logits, 1, out=kept[rows]) if start < len(kept) else logits.softmax(1)
            chosen, likely = (part.gather(1, targets[rows].unsqueeze(1)).squeeze(1) for part in (logits, probs))
            sure = bool((likely > _SURE).all())
            logprobs[rows] = likely.log() if sure else chosen - torch.logsumexp(logits, 1)
            normalisers[rows] = chosen - logprobs[rows]
            if entropy:
                entropies[rows] = normalisers[rows] - torch.bmm(probs.unsqueeze(1), logits.unsqueeze(2)).view(-1)
        ctx.memory, ctx.temperature = memory, temperature
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropies, kept)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalisers, entropies, kept = ctx.saved_tensors
        upstream = (torch.zeros_like(normalisers) if grads[0] is None else grads[0]).unsqueeze(1)  # [R, 1]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        chunk = _chunk_rows(weight)

        def log_probs(rows: slice) -> Tensor:  # fp32 [C, V]
            return _logits(hidden[rows], weight, ctx.temperature).sub_(normalisers[rows].unsqueeze(1))

        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            at = targets[rows].unsqueeze(1)
            if grads[1] is None:
                # Scaling [C, d] is cheaper than [C, V].
                again = start >= len(kept)
                grad_logits = log_probs(rows).exp_() if again else kept[rows]
                scale = -upstream[rows]
                grad_logits.scatter_add_(1, at, torch.full_like(scale, -1.0))
            else:
                scores, scale = log_probs(rows), torch.ones_like(upstream[rows])
                probs = scores.exp()
                factor = (
                    scores.add_(entropies[rows].unsqueeze(1)).mul_(grads[1][rows].unsqueeze(1)).add_(upstream[rows])
                )
                grad_logits = probs.mul_(factor).neg_().scatter_add_(1, at, upstream[rows])
            scale = scale if ctx.temperature == 1.0 else scale / ctx.temperature
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[rows] = linear(grad_logits, weight.t()) * scale
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits.t(), (hidden[rows] * scale).to(hidden.dtype))
        if grads[1] is None and ctx.memory is not None:
            _spare[weight.device] = ctx.memory  # what was kept has been overwritten: nobody can read it as such again
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _memory(weight: Tensor, count: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Memory that nobody else holds until a backward pass gives it back, and the part of it for probabilities ``[K, V]``.

    Of the fixed size only what is used becomes resident.
    """
    whole, spare = KEPT_BYTES[weight.device.type] // 4, _spare.pop(weight.device, None)
    memory = weight.new_empty(whole, dtype=torch.float32) if spare is None or len(spare) != whole else spare
    rows = min(count, whole // len(weight) // chunk * chunk)
    return memory, memory.detach()[: rows * len(weight)].view(rows, len(weight))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Compute the logits over the temperature in fp32, ``[C, V]``.

    A GPU sums products of half-precision values in fp32, and the sum stays so: rounded to bfloat16, logits of 16 to 32 would be
    multiples of 1/8.
    """
    if hidden.device.type in _WIDE_SUMS and hidden.dtype != torch.float32:
        logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    else:
        logits = linear(hidden, weight).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``, summed in the type of ``total``.

    A GPU adds to it where it lies: the product alone would be as large as ``total``, which is 2.2 GB of a 7B model.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif left.device.type in _WIDE_SUMS:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right
