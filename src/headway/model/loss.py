"""Chunked linear cross-entropy with z-loss: the logits of a long batch never exist at once.

    for each chunk of tokens:   logits = hidden W'        GEMM in the compute dtype, then float32
                                lse    = logsumexp        nll = lse - logit[target]        z = z_weight lse^2
                                dlogits = softmax (1 + 2 z_weight lse) - onehot           (the gradient, at once)
                                dhidden = dlogits W,  dW += dlogits' hidden

Losses are sums over target tokens; the caller divides once by the global count of targets (CONTRACTS section 4). Masked
tokens are chosen away by ``torch.where``, never multiplied: 0 x inf would be NaN.

Shapes: B batch, T time, N = B T tokens, C tokens of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.formulas.activations import loss_chunk_tokens


@dataclass(frozen=True, eq=False)
class LossSums:
    """Sums over target tokens, float64 scalars; objective_sum = nll_sum + z_sum is the one that carries the gradient."""

    nll_sum: Tensor  # nats
    z_sum: Tensor  # z_weight * sum of logsumexp^2
    objective_sum: Tensor


def loss_sums(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    targets_BT: Tensor,
    mask_BT: Tensor | None,
    z_weight: float,
    chunk_tokens: int | None = None,
) -> LossSums:
    """Sums of the per-token loss over the targets that ``mask_BT`` (None: all) keeps.

    The result does not depend on ``chunk_tokens`` but for rounding. Masked positions may hold any target, even one
    outside the vocabulary.
    """
    chunk = chunk_tokens or loss_chunk_tokens(weight_VD.shape[0])
    targets_N, keep_N = targets_BT.reshape(-1).long(), None if mask_BT is None else mask_BT.reshape(-1).bool()
    options = _Options(z_weight=z_weight, chunk_tokens=chunk)
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    objective, nll, z = _ChunkedLoss.apply(hidden_ND, weight_VD, targets_N, keep_N, options)
    return LossSums(nll_sum=nll, z_sum=z, objective_sum=objective)


@dataclass(frozen=True)
class _Options:
    z_weight: float
    chunk_tokens: int


class _ChunkedLoss(Function):
    """Loss and gradients in one pass over the chunks; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, keep_N: Tensor | None, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        with_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden_ND = torch.empty_like(hidden_ND) if with_gradient else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=_wide_dtype(weight_VD)) if with_gradient else None
        nll_sum, z_sum = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for start in range(0, hidden_ND.shape[0], options.chunk_tokens):
            at = slice(start, start + options.chunk_tokens)
            chunk = _chunk(hidden_ND[at], weight_VD, targets_N[at], None if keep_N is None else keep_N[at])
            lse_C, nll_C, softmax_CV = chunk.losses()
            nll_sum += nll_C.sum(dtype=torch.float64)
            z_sum += options.z_weight * chunk.kept(lse_C.square()).sum(dtype=torch.float64)
            if grad_hidden_ND is not None and grad_weight_VD is not None:
                grad_CV = chunk.logit_gradient(softmax_CV, lse_C, options.z_weight)
                torch.mm(grad_CV, weight_VD, out=grad_hidden_ND[at])
                grad_weight_VD.add_(grad_CV.t() @ chunk.hidden_CD)
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        ctx.mark_non_differentiable(nll_sum, z_sum)
        return nll_sum + z_sum, nll_sum, z_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND * grad_objective, (grad_weight_VD * grad_objective).to(ctx.weight_dtype), None, None, None


@dataclass(frozen=True, eq=False, kw_only=True)
class _Chunk:
    """The tokens of one chunk; ``keep_C`` None: all are targets. Made by ``_chunk``."""

    hidden_CD: Tensor
    weight_VD: Tensor
    targets_C: Tensor
    keep_C: Tensor | None

    def kept(self, x_C: Tensor) -> Tensor:
        return x_C if self.keep_C is None else torch.where(self.keep_C, x_C, 0)

    def losses(self) -> tuple[Tensor, Tensor, Tensor]:
        """logsumexp and (masked) nll per token, and the softmax, in float32.

        logsumexp from the softmax that the gradient needs anyway, at the largest logit, whose share is at least 1 / V:
        one pass with exponentials instead of two.
        """
        logits_CV = (self.hidden_CD @ self.weight_VD.t()).to(_wide_dtype(self.weight_VD))
        largest_C, target_C = logits_CV.amax(-1), logits_CV.gather(-1, self.targets_C[:, None]).squeeze(-1)
        softmax_CV = torch.softmax(logits_CV, -1)
        lse_C = largest_C - softmax_CV.amax(-1).log_()
        return lse_C, self.kept(lse_C - target_C), softmax_CV

    def logit_gradient(self, softmax_CV: Tensor, lse_C: Tensor, z_weight: float) -> Tensor:
        """d objective / d logits in the compute dtype; overwrites ``softmax_CV``."""
        grad_CV = softmax_CV.mul_((1 + 2 * z_weight * lse_C)[:, None]) if z_weight else softmax_CV
        grad_CV.scatter_add_(-1, self.targets_C[:, None], grad_CV.new_full((1, 1), -1).expand(len(lse_C), 1))
        if self.keep_C is not None:
            grad_CV = torch.where(self.keep_C[:, None], grad_CV, 0)
        return grad_CV.to(self.weight_VD.dtype)


def _chunk(hidden_CD: Tensor, weight_VD: Tensor, targets_C: Tensor, keep_C: Tensor | None) -> _Chunk:
    """Masked tokens enter as zeros: dW multiplies their (zero) gradient by their hidden state, which may be infinite."""
    if keep_C is not None:
        hidden_CD, targets_C = torch.where(keep_C[:, None], hidden_CD, 0), torch.where(keep_C, targets_C, 0)
    return _Chunk(hidden_CD=hidden_CD, weight_VD=weight_VD, targets_C=targets_C, keep_C=keep_C)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
