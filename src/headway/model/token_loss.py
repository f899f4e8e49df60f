"""The loss of every target apart, without gradients: what ``loss.py`` sums, for evaluations that look at parts of it.

Shapes: B batch, T time, N = B T tokens, C tokens of a chunk, D width, V vocabulary (of this rank).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.formulas.activations import loss_chunk_tokens
from headway.model.loss import OutputRule, Vocabulary
from headway.model.wide import wide_dtype


@torch.no_grad()
def token_losses(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    targets_BT: Tensor,
    output: OutputRule | None = None,
    chunk_tokens: int | None = None,
    vocabulary: Vocabulary | None = None,
) -> Tensor:
    """Cross-entropy of each target, nats, B T, in float32 or wider. Logits exist for a chunk of tokens at a time.

    ``vocabulary``: how ranks divide it; they all give the same tokens and have the same result.
    """
    chunk = chunk_tokens or loss_chunk_tokens(weight_VD.shape[0])
    rule, divided = output or OutputRule(), vocabulary or Vocabulary()
    hidden_ND, targets_N = hidden_BTD.reshape(-1, hidden_BTD.shape[-1]).to(weight_VD.dtype), targets_BT.reshape(-1).long()
    found = [
        _chunk(rule.apply((hidden_CD @ weight_VD.t()).to(wide_dtype(weight_VD))), targets_C, divided)
        for hidden_CD, targets_C in zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True)
    ]
    return torch.cat(found).reshape(targets_BT.shape)


def _chunk(logits_CV: Tensor, targets_C: Tensor, vocabulary: Vocabulary) -> Tensor:
    ranks = vocabulary.ranks
    if not ranks.divide_tokens:
        return logits_CV.logsumexp(-1) - logits_CV.gather(-1, targets_C[:, None]).squeeze(-1)
    row_C = targets_C - vocabulary.first
    here_C = (row_C >= 0) & (row_C < logits_CV.shape[1])
    target_C = torch.where(here_C, logits_CV.gather(-1, torch.where(here_C, row_C, 0)[:, None]).squeeze(-1), 0)
    largest_C = ranks.maximum(logits_CV.amax(-1))
    sums_C2 = torch.stack([(logits_CV - largest_C[:, None]).exp_().sum(-1), target_C], -1)
    total_C, target_C = ranks.sum(sums_C2).unbind(-1)
    return largest_C + total_C.log() - target_C
