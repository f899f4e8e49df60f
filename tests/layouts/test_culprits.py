"""A rank that computes wrongly is named by the notes of all, whatever the ranks exchange; those it has misled are not."""

from __future__ import annotations

import pytest
import torch
from layout_cases import described

from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.recipe.spec import Spec
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.soundness.culprit import Difference, culprits, difference
from headway.train.soundness.repeat import Kept, noted_step
from headway.train.trainee import Trainee, sharded

pytestmark = pytest.mark.layouts

EXPERTS = ("model.experts.experts=4", "model.experts.top_k=2", "model.experts.width=32")
CASES = {
    "copies": (Axes(dp_replicate=2), ()),
    "shards": (Axes(dp_shard=2), ()),
    "whole gradients": (Axes(dp_shard=2, zero=1), ()),
    "tp": (Axes(tp=2), ()),
    "cp": (Axes(cp=2), ()),
    "pp": (Axes(pp=2), ()),
    "experts": (Axes(dp_shard=2, ep=2), EXPERTS),
    "copies of shards": (Axes(dp_replicate=2, dp_shard=2), ()),
}
WRONG = 1


def two_runs(axes: Axes, spec: Spec) -> tuple[Difference, Difference]:
    """Of an honest repetition, and of one in which rank ``WRONG`` has one wrong number."""
    mesh = Mesh(axes)
    trainee = sharded(spec, mesh)
    batch = RandomFeed(spec, 2, Replica(mesh.replica, axes.replicas)).fetch(0)
    for _ in range(2):  # the first run of a shape may have exchanges of its own
        kept = Kept(trainee)
        first = noted_step(trainee, batch, 1e-3)
        kept.restore(trainee)
    again = noted_step(trainee, batch, 1e-3)
    kept.restore(trainee)
    if torch.distributed.get_rank() == WRONG:
        wrong_product(trainee)
    wrong = noted_step(trainee, batch, 1e-3)
    return difference(first.notes, again.notes), difference(first.notes, wrong.notes)


def wrong_product(trainee: Trainee) -> None:
    """Of one micro-batch, in the last block of this rank: what a processor does that errs once."""
    decoder = trainee.compute.decoder
    left = [1]

    def err(_module, _inputs, output):
        if left and left.pop():
            with torch.no_grad():
                (output[0] if isinstance(output, tuple) else output).view(-1)[7] += 1.0

    list(decoder.layers)[-1].register_forward_hook(err)


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_erred_is_named(case):
    axes, overrides = CASES[case]
    found = on_ranks(two_runs, axes.world, axes, described("proxy", overrides))
    assert {honest.first for honest, _ in found} == {None}, "an honest repetition is the same, bit for bit"
    assert culprits({rank: wrong for rank, (_, wrong) in enumerate(found)}) == (WRONG,)
    misled = [rank for rank, (_, wrong) in enumerate(found) if wrong.first is not None and rank != WRONG]
    assert misled, "the error has reached others, who are not accused"
