"""What a rank holds at its peak is what the plan says: every allocation of a step, against the counted tensors.

Buffers that gloo's own threads give back are not seen to be given back: the peak lies between what is seen and that less those.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_cases import described
from torch.profiler import ProfilerActivity, profile

from headway.formulas.activations import Pass
from headway.formulas.rank_memory import Share, rank_quantities
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.state import local_values
from headway.recipe.spec import BatchPhase, PrecisionSpec, Spec
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.step import train_step
from headway.train.trainee import build_trainee

pytestmark = pytest.mark.layouts

BATCH, LENGTH = 16, 256
TENSORS = ("state", "gradients", "gathered", "activations", "working")
"""What the allocator counts; the process and its heap stand beside."""


def spec(precision: str) -> Spec:
    """Of a size at which no part is lost beside the others."""
    small = described("proxy", ("model.kv_heads=2",))
    model = replace(small.model, layers=4, width=192, heads=6, head_width=32, ffn_width=768, vocabulary=4096)
    stage = replace(small.stages[0], sequence_length=LENGTH, phases=(BatchPhase(0, BATCH),))
    return replace(small, model=model, stages=(stage,), precision=PrecisionSpec(precision))


def peak(spec: Spec, axes: Axes, rows: int) -> tuple[int, int]:
    """Least and most bytes of tensors in the second step."""
    mesh = Mesh(axes)
    trainee = build_trainee(spec, mesh)
    feed = RandomFeed(spec, rows, Replica(mesh.replica, axes.replicas))
    train_step(trainee, feed.fetch(0), 1e-3)
    held = sum(tensor.nbytes for tensor in local_values(trainee.optimizer.state_tensors()).values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        train_step(trainee, feed.fetch(1), 1e-3)
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return held + most - max(0, now), held + most


@pytest.mark.parametrize(
    ("axes", "rows"),
    [
        ({"dp_shard": 2}, 8),
        ({"dp_shard": 2}, 2),
        ({"dp_shard": 2, "zero": 2}, 2),
        ({"dp_shard": 2, "zero": 1}, 2),
        ({"dp_replicate": 2}, 4),
        ({"tp": 2}, 8),
        ({"cp": 2}, 8),
        ({"dp_shard": 2, "tp": 2}, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_peak_of_a_rank_is_the_planned_one_within_a_tenth(axes, rows, precision):
    layout, recipe = Axes(**axes), spec(precision)
    least, most = max(on_ranks(peak, layout.world, recipe, layout, rows))
    one = Pass(model=recipe.model, compute=precision, sequence_length=LENGTH, rows=rows)
    passes = BATCH // (layout.replicas * rows)
    share = Share(tp=layout.tp, cp=layout.cp, shards=layout.dp_shard * layout.cp, zero=layout.zero, passes=passes)
    parts = rank_quantities(one, share, recipe.optimizer)
    planned = sum(parts[name].number() for name in TENSORS)
    assert 0.9 * least <= planned <= 1.1 * most
    assert most < 1.12 * least, "what is not seen must stay small"
