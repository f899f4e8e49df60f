"""What training must hold from step to step, and gradients: of the whole model, and of one process.

whole model    (weight_bytes + gradient_bytes + optimizer_bytes) N      the deployment's own bytes
one process    its pipeline stage, cut by tp and ep, sharded as zero says; without the optimizer where that is offloaded
"""

from __future__ import annotations

from headway.formulas.quantity import Input, Quantity
from headway.plan.memory.model import state_bytes
from headway.plan.memory.stages import distinct_stages, stages
from headway.plan.work import Layout, Work


def state_quantities(work: Work, layout: Layout, stored: Quantity) -> tuple[Quantity, Quantity]:
    """Of the whole model, which stores ``stored`` parameters, and of the process that holds most."""
    return whole_state(work, stored), process_state(work, layout)


def whole_state(work: Work, stored: Quantity) -> Quantity:
    each = work.weight_bytes + work.gradient_bytes + work.optimizer_bytes
    inputs: dict[str, Input] = {"N": stored}
    source = (
        f"{work.weight_bytes} bytes of weights, {work.gradient_bytes} of gradients, {work.optimizer_bytes} of master copy and "
        "moments (deployment: state)"
    )
    return Quantity("state_bytes", each * int(stored.number()), "bytes", f"{each} N", inputs, source)


def process_state(work: Work, layout: Layout) -> Quantity:
    cut = (work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    states = {at: state_bytes(work, layout, stages(*cut)[at]) for at in distinct_stages(*cut)}
    at = max(states, key=lambda at: sum(states[at].values()))
    parts = {name: bytes_ for name, bytes_ in states[at].items() if bytes_}
    where = f"zero {layout.zero} over {layout.shards:,} ranks that share states, pipeline stage {at} of {layout.pp}"
    source = where + (", optimizer in host memory" if layout.offload else "")
    inputs: dict[str, Input] = dict(parts)
    return Quantity("state_bytes_per_process", sum(parts.values()), "bytes", " + ".join(parts), inputs, source)
