"""What a block's backward pass computes again instead of keeping it.

    none        nothing
    selective   of attention and feed-forwards all but products with weights and what ranks exchanged: rotations, scores and sums,
                activations. Norms and routed experts keep theirs
    full        the whole block from its input

Values are the same bits: nothing here draws from a generator. Routers that run twice write their line of a tally twice, which
counts once (``tally.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, _VersionWrapper, checkpoint, create_selective_checkpoint_contexts

from headway.model.away import Away, fetched

RECOMPUTED = ("none", "selective", "full")
KEPT = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
"""Products of rows of tokens with a weight; those of attention are over heads (``bmm``)."""
EXCHANGED = "_c10d_functional"
"""Namespace of torch's collectives."""


def again(compute: Callable[..., Tensor], kind: str, *inputs: Any, away: Away | None = None) -> Tensor:
    """``compute(*inputs)``, of which ``kind`` is computed again in the backward pass. ``away``: where what is kept of it lies."""
    if kind == "none" or not torch.is_grad_enabled():
        return compute(*inputs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if kind == "selective":
        options["context_fn"] = partial(_selective, away)
    return checkpoint(compute, *inputs, **options)


def _policy(_: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    kept = operator in KEPT or operator.namespace == EXCHANGED
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(away: Away | None) -> tuple[Any, Any]:
    """Contexts of the first and the second time. torch holds what is kept beside autograd, whose hooks do not see it."""
    first, second = create_selective_checkpoint_contexts(_policy)
    if away is None:
        return first, second
    return _putting(first, away), _fetching(second)


@contextlib.contextmanager
def _putting(first: Any, away: Away) -> Iterator[None]:
    with first:
        yield
    assert away.block is not None, "blocks alone put away"
    for held in _held(first.storage):
        held.val = away.block.put(held.val)


@contextlib.contextmanager
def _fetching(second: Any) -> Iterator[None]:
    for held in _held(second.storage):
        held.val = fetched(held.val)
        held.version = held.val._version
    with second:
        yield


def _held(storage: Mapping[Any, Mapping[int, Any]]) -> Iterator[_VersionWrapper]:
    entries = (entry for calls in storage.values() for entry in calls.values())
    return (leaf for entry in entries for leaf in tree_leaves(entry) if isinstance(leaf, _VersionWrapper))
