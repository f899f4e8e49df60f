"""Recomputation: the same gradients to the bit, from less that is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.model.recompute import RECOMPUTED
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spec import PrecisionSpec
from headway.train.prove.batches import RandomFeed
from headway.train.prove.miniature import small_spec
from headway.train.step import context_of


def kept_and_gradients(preset: str, recompute: str, precision: str) -> tuple[int, dict[str, torch.Tensor]]:
    """Bytes that autograd keeps for the backward pass, and what that gives. What selective keeps of products torch holds beside
    autograd, uncounted here: of it, only the gradients are a proof."""
    spec = small_spec(resolve(load_recipe(preset), None))
    decoder = Decoder(replace(spec.model, width=96))
    initialise(decoder, decoder.spec, 1)
    model = ComputeModel(decoder, PrecisionSpec(precision), recompute)
    micro, seen = RandomFeed(spec, 12).fetch(0).micro_batches[0], {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        context = context_of(model, micro, spec.stages[0].rope)
        sums = training_sums(model, torch.from_numpy(micro.tokens_BT), torch.from_numpy(micro.targets_BT), context, 0.0)
    sums.objective_sum.backward()
    return sum(seen.values()), {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", ["proxy", "mixtral-8x7b", "deepseek-v3", "gpt2-124m"])
def test_less_is_kept_and_every_gradient_is_the_same(preset, precision):
    found = {kind: kept_and_gradients(preset, kind, precision) for kind in RECOMPUTED}
    for kind in ("selective", "full"):
        for name, gradient in found["none"][1].items():
            assert torch.equal(found[kind][1][name], gradient), (kind, name)
    none, selective, full = (found[kind][0] for kind in RECOMPUTED)
    assert full < selective < none, (none, selective, full)
