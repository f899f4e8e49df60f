"""Bytes of the training state: the deployment's own, and of a process what zero leaves on it."""

from __future__ import annotations

import pytest
from plan_cases import CHIP, GPT, draft, where

from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.plan.cluster import layout_of, work_of
from headway.plan.facts import PlanFacts
from headway.plan.layout.sieve import least_bytes
from headway.plan.memory.rank_memory import memory_quantities, peak_memory
from headway.plan.memory.state import state_quantities
from headway.plan.outlook import memory_section
from headway.plan.step.compute import update_seconds
from headway.recipe.mup import is_muon
from headway.recipe.roles import parameter_shapes

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
    assert state("layouts.default={dp_shard=8, zero=2, offload='activations'}") == (18, pytest.approx(2 + (4 + 12) / 8))


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


def test_ranks_whose_heads_are_not_counted_have_their_states_alone():
    """Plans copy key-value heads where tensor ranks are more; the engine refuses that."""
    few = draft(*GPT, "model.kv_heads=2")
    names = {
        tp: {
            q.name
            for q in memory_section(
                PlanFacts(few, where(f"processes_per_node={tp}", f"layouts.default.tp={tp}"), None)
            ).quantities
        }
        for tp in (2, 4)
    }
    assert "memory_bytes" in names[2]
    assert "state_bytes_per_process" in names[4]
    assert "memory_bytes" not in names[4]


# --- Muon

MUON = ("optimizer.kind=muon", "optimizer.matrix_rate=0.02")
EXPERTS = ("model.experts.experts=4", "model.experts.top_k=2", "model.experts.width=96", "model.experts.router_bias=true")


def quantities(facts: PlanFacts) -> dict:
    return {q.name: q for q in memory_section(facts).quantities}


@pytest.mark.parametrize("sets", [(), EXPERTS, MUON, (*MUON, *EXPERTS)], ids=["adamw", "experts", "muon", "both"])
def test_a_checkpoint_is_as_large_as_what_the_optimizer_keeps(sets):
    torch = pytest.importorskip("torch")
    from headway.model.decoder import Decoder
    from headway.optim.build import build_optimizer

    spec = draft(*sets)
    with torch.device("meta"):
        kept = build_optimizer(Decoder(spec.model), spec.optimizer).state_tensors()
    size = PlanFacts(spec, where(), None).checkpoint_size
    assert size.value == sum(tensor.nbytes for tensor in kept.values())
    muon, stored = count_muon(spec), count_parameters(spec.model).stored
    assert size.formula.startswith("12 N - 4 M" if muon else "12 N")
    stated = PlanFacts(spec, where("checkpoints.bytes_per_parameter=16"), None).checkpoint_size
    assert (stated.value, stated.formula) == (16 * stored, "16 N")


def count_muon(spec) -> int:
    return sum(shape.count for shape in parameter_shapes(spec.model) if is_muon(shape, spec.optimizer))


def test_muons_matrices_have_one_moment_wherever_the_state_is_counted():
    spec, deployment = draft(*GPT, *MUON), where(*CHIP, "layouts.default={dp_shard=8, zero=1}")
    facts, work = PlanFacts(spec, deployment, None), work_of(spec, spec.stages[0], deployment)
    found = quantities(facts)
    assert found["state_bytes"].value == 18 * COUNT - 4 * count_muon(spec)
    assert found["state_bytes"].formula == "18 N - 4 M"
    share = count_muon(spec) / COUNT
    per_process = 2 + 4 + (12 - 4 * share) / 8
    assert found["state_bytes_per_process"].value / COUNT == pytest.approx(per_process)
    plain = work_of(SPEC, SPEC.stages[0], deployment)
    assert least_bytes(work, facts.layouts["main"]) < least_bytes(plain, facts.layouts["main"])
    seconds = [update_seconds(COUNT, each, facts.layouts["main"], facts.cluster.chip) for each in (work, plain)]
    assert seconds[0] / seconds[1] == pytest.approx((2 + 4 + 2 * (12 - 4 * share)) / (2 + 4 + 2 * 12))
