"""HFU beside MFU: what the devices compute where layouts recompute activations, as a share of the peak.

MFU    operations that the model needs       HFU = MFU x (operations that are carried out / needed), over all stages
HFU    and those that are done twice
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.quantity import Input, Quantity
from headway.formulas.recompute import recompute_factor
from headway.plan.facts import PlanFacts
from headway.plan.rates import plain


def hardware_utilisation(facts: PlanFacts, mfu: Quantity) -> Iterator[Quantity]:
    """HFU of the run at the rate of ``mfu``, causal attention counted; nothing where no layout recomputes what costs FLOPs."""
    if facts.cluster is None:
        return
    needed, computed = facts.total_flops(Convention.CAUSAL), hardware_flops(facts)
    if computed.number() <= needed.number() * (1 + 1e-9):
        return
    factor = computed.number() / needed.number()
    low, high = (None if bound is None else bound * factor for bound in (mfu.low, mfu.high))
    inputs: dict[str, Input] = {"MFU": mfu, "computed": computed, "needed": needed}
    source = f"{mfu.source}; recomputation by the layouts"
    yield Quantity("hfu_causal", mfu.number() * factor, "share", "MFU x computed / needed", inputs, source, low, high)


def hardware_flops(facts: PlanFacts) -> Quantity:
    """Operations of the whole run, recomputation included; every stage on its own layout."""
    flash = facts.deployment.implementation.flash
    parts: dict[str, Input] = {}
    for stage in facts.spec.stages:
        recompute, length = facts.layouts[stage.name].recompute, stage.sequence_length
        factor = recompute_factor(facts.spec.model, length, Convention.CAUSAL, recompute, flash=flash)
        needed = stage.sequences * length * flops_per_token(facts.spec.model, length, Convention.CAUSAL)
        name = f"hardware_flops_causal_{plain(stage.name)}"
        inputs: dict[str, Input] = {"needed": needed, "factor": factor, "recompute": str(recompute)}
        parts[name] = Quantity(name, needed * factor, "FLOP", "needed x factor", inputs, "what the layout recomputes")
    value = sum(part.number() for part in parts.values() if isinstance(part, Quantity))
    return Quantity("hardware_flops_causal", value, "FLOP", " + ".join(parts), parts, "every stage on its own layout")
