"""Layouts at random: refused before anything starts, or the engine takes them and runs a step (P1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import described

from headway.base.errors import RunError
from headway.parallel.group import pretend
from headway.parallel.local_ranks import in_new_process
from headway.parallel.mesh import Axes, Mesh
from headway.recipe.engine_layouts import Sizes, Task, refused
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.step import train_step
from headway.train.trainee import build_trainee

pytestmark = pytest.mark.layouts

SPEC = described("proxy")


sizes = st.builds(
    Sizes,
    dp_replicate=st.integers(1, 3),
    dp_shard=st.integers(1, 3),
    tp=st.integers(1, 4),
    zero=st.integers(0, 3),
)
models = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([2, 3, 4]),
        "kv_heads": st.sampled_from([1, 2, 3, 4]),
        "ffn_width": st.sampled_from([96, 90]),
        "vocabulary": st.sampled_from([3, 5, 31, 64]),
        "tied_embeddings": st.booleans(),
        "qk_norm": st.booleans(),
        "qk_norm_over": st.sampled_from(["head", "all"]),
    }
).filter(lambda model: model["heads"] % model["kv_heads"] == 0)


@settings(max_examples=60, deadline=None)
@given(sizes=sizes, model=models, length=st.sampled_from([8, 12, 15]), batch=st.integers(1, 4), place=st.randoms())
def test_P1_a_layout_is_refused_or_runs(sizes, model, length, batch, place):
    spec = small_one(model, length, batch)
    if any(refused(task, sizes) for task in Task.of(spec)):
        return
    in_new_process(run_a_step, spec, sizes, place.randrange(sizes.world))


def small_one(model: dict, length: int, batch: int):
    stage = replace(SPEC.stages[0], sequence_length=length, phases=(replace(SPEC.stages[0].phases[0], batch_sequences=batch),))
    return replace(SPEC, model=replace(SPEC.model, layers=1, **model), stages=(stage,))


def run_a_step(spec, sizes: Sizes, rank: int) -> None:
    with pretend(rank, sizes.world):
        axes = Axes.of(vars(sizes))
        mesh = Mesh(axes)
        trainee = build_trainee(spec, mesh)
        feed = RandomFeed(spec, 2, Replica(mesh.replica, axes.replicas))
        train_step(trainee, feed.fetch(0), 1e-3)
        assert trainee.parameters


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ({"vocabulary": 3}, Sizes(tp=4)),
        ({"kv_heads": 1, "heads": 4}, Sizes(tp=2)),
        ({"qk_norm": True, "qk_norm_over": "all"}, Sizes(tp=2)),
    ],
    ids=str,
)
def test_what_is_refused_would_fail(model, sizes):
    """So the rules are not there for nothing."""
    spec = small_one({"kv_heads": 4, "heads": 4} | model, 12, 2)
    assert refused(Task.of(spec)[0], sizes)
    with pytest.raises(RunError, match=r"^(RuntimeError|IndexError|ValueError|AssertionError)"):
        in_new_process(run_a_step, spec, sizes, sizes.world - 1)
