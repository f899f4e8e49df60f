"""What a block's backward pass computes again instead of keeping it.

    none        nothing
    selective   of attention and feed-forwards all but products with weights and what ranks exchanged: rotations, scores and sums,
                activations. Norms and routed experts keep theirs
    full        the whole block from its input

Values are the same bits: nothing here draws from a generator. Routers that run twice write their line of a tally twice, which
counts once (``tally.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

RECOMPUTED = ("none", "selective", "full")
KEPT = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
"""Products of rows of tokens with a weight; those of attention are over heads (``bmm``)."""
EXCHANGED = "_c10d_functional"
"""Namespace of torch's collectives."""


def again(compute: Callable[..., Tensor], kind: str, *inputs: Any) -> Tensor:
    """``compute(*inputs)``, of which ``kind`` is computed again in the backward pass."""
    if kind == "none" or not torch.is_grad_enabled():
        return compute(*inputs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if kind == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(compute, *inputs, **options)


def _policy(_: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    kept = operator in KEPT or operator.namespace == EXCHANGED
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
