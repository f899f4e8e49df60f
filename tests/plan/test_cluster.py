"""From a deployment to Cluster, Layout and Work: stated figures first, the table's else, nothing invented."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.plan.cluster import cluster_of, layout_of, steps_between_checkpoints, work_of
from headway.plan.work import SIZES, Cluster, Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe import deployment
from headway.recipe.chips import find_chip
from headway.recipe.cluster import with_cluster
from headway.recipe.deployment import AXES
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.offload import Offload
from headway.recipe.placement import settle
from headway.recipe.resolve import resolve

SIXTEEN = ["nodes=2", "processes_per_node=8", "layouts.default.dp_shard=2", "layouts.default.tp=8"]


def planned(*sets: str):
    return load_deployment(None, [*SIXTEEN, *sets], runnable=False)


def test_the_table_gives_what_is_not_stated():
    cluster = cluster_of(settle(planned("accelerator.kind=H100"), "bfloat16"))
    assert (cluster.chip.name, cluster.chips, cluster.domain, cluster.network) == ("H100-SXM", 16, 8, 50e9)
    assert cluster.chip.peaks["bfloat16"] == 989e12
    assert cluster.spans(16, 1) == 2


def test_stated_figures_come_first():
    sets = ["accelerator.kind=H100", "accelerator.network=25GB", "accelerator.domain=4", "accelerator.memory=70GB"]
    cluster = cluster_of(planned(*sets, "accelerator.peak_flops=494.5T"))
    assert (cluster.domain, cluster.network, cluster.chip.memory_bytes) == (4, 25e9, 70e9)
    assert cluster.chip.peaks["bfloat16"] == pytest.approx(494.5e12)
    assert cluster.chip.achievable["bfloat16"] == pytest.approx(794.5e12 / 2)  # clocked lower: in all it does


def test_G2_no_cluster_is_made_up():
    assert cluster_of(planned("accelerator.kind=cpu")) is None
    assert cluster_of(planned("accelerator.kind=H9000", "accelerator.peak_flops=5P", "accelerator.memory=500GB")) is None
    rubin = with_cluster(load_deployment(), "144xRubin")
    with pytest.raises(ConfigError, match="no network between machines of Rubin"):
        cluster_of(rubin)
    assert cluster_of(with_cluster(load_deployment(), "72xRubin")).network == math.inf  # never asked for
    assert cluster_of(with_cluster(load_deployment(), "4xH100")).domain == 4


@given(st.sampled_from([1, 2, 4, 8, 72]), st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16, 128]))
def test_inside_and_spans_count_domains(domain, group, stride):
    """Ranks 0, stride, 2 stride, ... of a group that begins with its domain."""
    cluster = Cluster(chip=find_chip("H100-SXM"), chips=10**6, domain=domain, network=1.0)
    if domain % stride and stride % domain:
        return  # a stride that divides no domain
    domains = [rank * stride // domain for rank in range(group)]
    assert cluster.inside(group, stride) == domains.count(0)
    assert cluster.spans(group, stride) == len(set(domains))


@pytest.mark.parametrize(
    ("stated", "planned_as"),
    [
        (deployment.Layout(), Layout()),
        (deployment.Implementation(), Implementation()),
        (deployment.State(), Work),
    ],
    ids=["layout", "implementation", "state"],
)
def test_what_is_declared_twice_has_the_same_fields_and_defaults(stated, planned_as):
    fields = {field.name: field.default for field in dataclasses.fields(planned_as)}
    shared = {name: fields[name] for name in stated.model_dump()}
    assert shared == stated.model_dump()
    assert planned_as is Work or fields.keys() == shared.keys()


def test_axes_are_those_of_the_mesh():
    primes = dict(zip(AXES, (2, 3, 5, 7, 11), strict=True))
    assert Layout(**primes).world == deployment.Layout(**primes).world == 2310
    assert set(SIZES) == {*AXES, "virtual", "ep"}


def test_layouts_carry_every_field():
    sets = [
        f"layouts.long.{name}={value}"
        for name, value in {
            "pp": 2,
            "cp": 2,
            "tp": 2,
            "dp_shard": 2,
            "ep": 2,
            "virtual": 3,
            "pipeline": "interleaved",
            "micro_batch": 4,
            "zero": 1,
            "recompute": "full",
            "sequence_parallel": "false",
            "offload": "all",
        }.items()
    ]
    deployment = planned(*sets)
    assert layout_of(deployment, "long") == Layout(
        pp=2,
        cp=2,
        tp=2,
        dp_shard=2,
        ep=2,
        virtual=3,
        pipeline=Pipeline.INTERLEAVED,
        micro_batch=4,
        zero=1,
        recompute=Recompute.FULL,
        sequence_parallel=False,
        offload=Offload.ALL,
    )
    assert layout_of(deployment, "main") == Layout(tp=8, dp_shard=2)
    assert layout_of(deployment, "main", micro_batch=2).micro_batch == 2


def test_work_is_a_step_of_a_stage():
    spec = resolve(load_recipe("demo"), None)
    deployment = planned("state.gradient_bytes=2", "implementation.dropout=true", "implementation.flash=false")
    stage = spec.stages[0]
    work = work_of(spec, stage, deployment)
    assert (work.sequence, work.batch) == (stage.sequence_length, max(p.batch_sequences for p in stage.phases))
    assert (work.weight_bytes, work.gradient_bytes, work.optimizer_bytes) == (2, 2, 12)
    assert work.implementation == Implementation(dropout=True, flash=False)
    assert work.precision == spec.precision.compute
    assert work_of(spec, stage, deployment, batch=3).batch == 3


def test_a_cadence_by_the_clock_is_whole_steps():
    policy = load_deployment(None, ["checkpoints.every=30min"], runnable=False).checkpoints
    assert steps_between_checkpoints(policy, 5.92) == 304  # the worked plan's
    assert steps_between_checkpoints(policy, 4000.0) == 1
    assert steps_between_checkpoints(policy, None) == 100
    assert steps_between_checkpoints(load_deployment().checkpoints, 5.92) == 100
