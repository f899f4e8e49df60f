"""Chunked linear cross-entropy with z-loss: the logits of a long batch never exist at once.

    for each chunk of tokens:   logits = hidden W'        GEMM in the compute dtype, then float32; x scale, softcap
                                lse    = logsumexp        nll = lse - logit[target]        z = z_weight lse^2
                                dlogits = softmax (1 + 2 z_weight lse) - onehot           (the gradient, at once)
                                dhidden = dlogits W,  dW += dlogits' hidden

Losses are sums over target tokens; the caller divides once by the global count of targets (CONTRACTS section 4). Masked
tokens are chosen away by ``torch.where``, never multiplied: 0 x inf would be NaN.

The two products of the gradient are taken for several chunks at once: dW is read and written as a whole each time.

Where ranks divide the vocabulary, each has the logits of its own rows of W; the largest logit, the sum of exponentials and the
target's logit are exchanged, three numbers per token (``ranks.py``).

Shapes: B batch, T time, N = B T tokens, C tokens of a chunk, G of a group of chunks, D width, V vocabulary
(of this rank).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.formulas.activations import GROUPED_CHUNKS, loss_chunk_tokens
from headway.model.ranks import ALONE, Ranks
from headway.model.wide import wide_dtype
from headway.recipe.mup import multipliers
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True)
class OutputRule:
    """logits = scale * product, then cap * tanh(logits / cap) where there is a cap."""

    scale: float = 1.0
    softcap: float | None = None

    @staticmethod
    def of(model: ModelSpec) -> OutputRule:
        return OutputRule(multipliers(model).logits, model.logit_softcap)

    def logits(self, product_CV: Tensor) -> Tensor:
        logits_CV = product_CV if self.scale == 1.0 else product_CV * self.scale
        return logits_CV if self.softcap is None else torch.tanh(logits_CV / self.softcap) * self.softcap

    def apply(self, product_CV: Tensor) -> Tensor:
        """The same in place."""
        logits_CV = product_CV if self.scale == 1.0 else product_CV.mul_(self.scale)
        return logits_CV if self.softcap is None else logits_CV.div_(self.softcap).tanh_().mul_(self.softcap)

    def gradient(self, grad_CV: Tensor, logits_CV: Tensor) -> Tensor:
        """From the gradient by logits to that by products, in place."""
        if self.softcap is not None:
            grad_CV.mul_(logits_CV.div(self.softcap).square_().neg_().add_(1))
        return grad_CV if self.scale == 1.0 else grad_CV.mul_(self.scale)


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
    output: OutputRule | None = None,
    chunk_tokens: int | None = None,
    vocabulary: Vocabulary | None = None,
) -> LossSums:
    """Sums of the per-token loss over the targets that ``mask_BT`` (None: all) keeps; ``output``: from products to logits.

    The result does not depend on ``chunk_tokens`` but for rounding. Masked positions may hold any target, even one
    outside the vocabulary. ``vocabulary``: how ranks divide it; they all give the same tokens and have the same result.
    """
    chunk = chunk_tokens or loss_chunk_tokens(weight_VD.shape[0])
    targets_N, keep_N = targets_BT.reshape(-1).long(), None if mask_BT is None else mask_BT.reshape(-1).bool()
    options = _Options(z_weight, chunk, output or OutputRule(), vocabulary or Vocabulary())
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1]).to(weight_VD.dtype)
    objective, nll, z = _ChunkedLoss.apply(hidden_ND, weight_VD, targets_N, keep_N, options)
    return LossSums(nll_sum=nll, z_sum=z, objective_sum=objective)


@dataclass(frozen=True)
class Vocabulary:
    """How ``ranks`` divide the rows of W: this rank's begin at ``first``."""

    ranks: Ranks = ALONE
    first: int = 0


@dataclass(frozen=True)
class _Options:
    z_weight: float
    chunk_tokens: int
    output: OutputRule
    vocabulary: Vocabulary


class _ChunkedLoss(Function):
    """Loss and gradients in one pass over the chunks; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, keep_N: Tensor | None, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        with_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden_ND = torch.empty_like(hidden_ND) if with_gradient else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide_dtype(weight_VD)) if with_gradient else None
        nll_sum, z_sum = (torch.zeros((), dtype=torch.float64, device=hidden_ND.device) for _ in range(2))
        group = options.chunk_tokens * GROUPED_CHUNKS
        for first in range(0, hidden_ND.shape[0], group):
            rows = slice(first, min(first + group, hidden_ND.shape[0]))
            hidden_GD, targets_G, keep_G = _kept(hidden_ND[rows], targets_N[rows], None if keep_N is None else keep_N[rows])
            grad_GV = hidden_GD.new_empty(len(hidden_GD), weight_VD.shape[0]) if with_gradient else None
            for start in range(0, len(hidden_GD), options.chunk_tokens):
                at = slice(start, start + options.chunk_tokens)
                chunk = _Chunk(hidden_GD[at], weight_VD, targets_G[at], None if keep_G is None else keep_G[at])
                nll, z = chunk.losses(options, None if grad_GV is None else grad_GV[at])
                nll_sum += nll
                z_sum += z
            if grad_GV is not None and grad_hidden_ND is not None and grad_weight_VD is not None:
                torch.mm(grad_GV, weight_VD, out=grad_hidden_ND[rows])
                grad_weight_VD.add_(grad_GV.t() @ hidden_GD)
            del grad_GV  # before the next one is made
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        ctx.mark_non_differentiable(nll_sum, z_sum)
        return nll_sum + z_sum, nll_sum, z_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        grad_VD = torch.empty_like(grad_weight_VD, dtype=ctx.weight_dtype)
        torch.mul(grad_weight_VD, grad_objective.to(grad_weight_VD.dtype), out=grad_VD)  # no third copy in float32
        return grad_hidden_ND * grad_objective, grad_VD, None, None, None


@dataclass(frozen=True, eq=False)
class _Chunk:
    """The tokens of one chunk; ``keep_C`` None: all are targets. Masked ones have come as zeros (``_kept``)."""

    hidden_CD: Tensor
    weight_VD: Tensor
    targets_C: Tensor
    keep_C: Tensor | None

    def kept(self, x_C: Tensor) -> Tensor:
        return x_C if self.keep_C is None else torch.where(self.keep_C, x_C, 0)

    def losses(self, options: _Options, grad_CV: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sums of nll and weighted z-loss, float64; the gradient by products goes into ``grad_CV``.

        logsumexp from the softmax that the gradient needs anyway, at the largest logit, whose share is at least 1 / V:
        one pass with exponentials instead of two.
        """
        product_CV = (self.hidden_CD @ self.weight_VD.t()).to(wide_dtype(self.weight_VD))
        logits_CV = options.output.apply(product_CV)
        part = (
            self._whole(logits_CV) if not options.vocabulary.ranks.divide_tokens else self._divided(logits_CV, options.vocabulary)
        )
        if grad_CV is not None:
            self._gradient(options, logits_CV, part, grad_CV)
        nll = self.kept(part.lse_C - part.target_C).sum(dtype=torch.float64)
        return nll, options.z_weight * self.kept(part.lse_C.square()).sum(dtype=torch.float64)

    def _whole(self, logits_CV: Tensor) -> _Normalised:
        softmax_CV = torch.softmax(logits_CV, -1)
        return _Normalised(
            softmax_CV=softmax_CV,
            lse_C=logits_CV.amax(-1) - softmax_CV.amax(-1).log_(),
            row_C=self.targets_C,
            target_C=logits_CV.gather(-1, self.targets_C[:, None]).squeeze(-1),
            minus_C=softmax_CV.new_full((1,), -1).expand(len(self.targets_C)),
        )

    def _divided(self, logits_CV: Tensor, vocabulary: Vocabulary) -> _Normalised:
        """With the rows of the other ranks."""
        ranks, row_C = vocabulary.ranks, self.targets_C - vocabulary.first
        here_C = (row_C >= 0) & (row_C < logits_CV.shape[1])
        row_C = torch.where(here_C, row_C, 0)
        largest_C = ranks.maximum(logits_CV.amax(-1))
        softmax_CV = (logits_CV - largest_C[:, None]).exp_()
        sums_C2 = torch.stack([softmax_CV.sum(-1), torch.where(here_C, logits_CV.gather(-1, row_C[:, None]).squeeze(-1), 0)], -1)
        total_C, target_C = ranks.sum(sums_C2).unbind(-1)
        lse_C = largest_C + total_C.log()
        return _Normalised(softmax_CV.div_(total_C[:, None]), lse_C, row_C, target_C, -here_C.to(lse_C.dtype))

    def _gradient(self, options: _Options, logits_CV: Tensor, part: _Normalised, out_CV: Tensor) -> None:
        """d objective / d products in the compute dtype; overwrites the softmax."""
        softmax_CV = part.softmax_CV
        if options.z_weight:
            softmax_CV.mul_((1 + 2 * options.z_weight * part.lse_C)[:, None])
        softmax_CV.scatter_add_(-1, part.row_C[:, None], part.minus_C[:, None])
        if self.keep_C is not None:
            softmax_CV = torch.where(self.keep_C[:, None], softmax_CV, 0)
        out_CV.copy_(options.output.gradient(softmax_CV, logits_CV))


@dataclass(frozen=True, eq=False)
class _Normalised:
    """Softmax and logsumexp of a chunk, and where its targets stand among this rank's rows."""

    softmax_CV: Tensor
    lse_C: Tensor
    row_C: Tensor
    target_C: Tensor  # logits
    minus_C: Tensor  # -1 where the target is one of these rows, else 0


def _kept(hidden_GD: Tensor, targets_G: Tensor, keep_G: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Masked tokens enter as zeros: dW multiplies their (zero) gradient by their hidden state, which may be infinite."""
    if keep_G is None:
        return hidden_GD, targets_G, None
    return torch.where(keep_G[:, None], hidden_GD, 0), torch.where(keep_G, targets_G, 0), keep_G
