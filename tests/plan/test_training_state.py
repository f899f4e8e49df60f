"""Bytes of the training state: the deployment's own, and of a process what zero leaves on it."""

from __future__ import annotations

import pytest
from plan_cases import CHIP, GPT, draft, where

from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.plan.cluster import layout_of, work_of
from headway.plan.facts import PlanFacts
from headway.plan.memory.rank_memory import memory_quantities, peak_memory
from headway.plan.memory.state import state_quantities
from headway.plan.outlook import memory_section

SPEC = draft(*GPT)
STORED = parameter_quantities(SPEC.model)["stored"]
COUNT = count_parameters(SPEC.model).stored


def state(*sets: str) -> tuple[float, float]:
    """Bytes per parameter of the whole model, and of a process."""
    deployment = where(*CHIP, *sets)
    layout = layout_of(deployment, "main")
    whole, process = state_quantities(work_of(SPEC, SPEC.stages[0], deployment), layout, STORED)
    assert f"{whole.value / COUNT:g} N" == whole.formula
    return whole.value / COUNT, process.value / COUNT


@pytest.mark.parametrize(("zero", "each"), [(0, 2 + 4 + 12), (1, 2 + 4 + 12 / 8), (2, 2 + (4 + 12) / 8), (3, (2 + 4 + 12) / 8)])
def test_a_process_holds_what_zero_leaves_on_it(zero: int, each: float):
    assert state(f"layouts.default={{dp_shard=8, zero={zero}}}") == (18, pytest.approx(each))


def test_the_bytes_are_the_deployments():
    assert state("state.gradient_bytes=2", "state.optimizer_bytes=8") == (12, pytest.approx(12 / 8))
    assert state("layouts.default={dp_shard=8, zero=2, offload=true}") == (18, pytest.approx(2 + 4 / 8))


def test_a_process_is_the_one_that_holds_most():
    """Two stages: the embedding lies on one, a copy of it as the head on the other; the last has the norm too."""
    deployment = where(*CHIP, "layouts.default={pp=2, dp_shard=4, zero=0}")
    layout, work = layout_of(deployment, "main"), work_of(SPEC, SPEC.stages[0], deployment)
    _, process = state_quantities(work, layout, STORED)
    embedding = SPEC.model.vocabulary * SPEC.model.width
    assert process.value == 18 * ((COUNT - embedding - SPEC.model.width) / 2 + embedding + SPEC.model.width)
    assert "pipeline stage 1 of 2" in process.source


@pytest.mark.parametrize("layout", ["{dp_shard=8, zero=3}", "{tp=2, dp_shard=4, zero=1}", "{dp_replicate=8, zero=0}"])
def test_the_plan_says_the_same_beside_memory_per_rank(layout: str):
    facts = PlanFacts(SPEC, where(*CHIP, f"layouts.default={layout}"), None)
    section = {q.name: q for q in memory_section(facts).quantities}
    stage = SPEC.stages[0]
    work = work_of(SPEC, stage, facts.deployment)
    worst = peak_memory(work, facts.layouts[stage.name], facts.cluster)
    parts = memory_quantities(work, facts.layouts[stage.name], facts.cluster, worst.stage)
    together = sum(parts[name].number() for name in ("weights", "gradients", "moments", "master"))
    assert section["state_bytes_per_process"].value == pytest.approx(together)
    assert section["state_bytes"].value == 18 * COUNT
