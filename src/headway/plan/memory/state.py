"""What training must hold from step to step, and gradients: of the whole model, and of one process.

whole model    (weight_bytes + gradient_bytes + optimizer_bytes) N      the deployment's own bytes; Muon's matrices less a moment
one process    its pipeline stage, cut by tp and ep, sharded as zero says; moments in host memory: what is on the device at once
"""

from __future__ import annotations

from functools import cache

from headway.formulas.memory import trained_state
from headway.formulas.quantity import Input, Quantity
from headway.plan.memory.model import state_bytes
from headway.plan.memory.stages import distinct_stages, stages
from headway.plan.work import MOMENT_BYTES, Layout, Work
from headway.recipe.spec import ModelSpec, OptimizerSpec

GRADIENT_BYTES = 4
"""Of this engine, in ``formulas/memory.py``: part of its state, and in no checkpoint."""


@cache
def one_moment_parameters(model: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Muon's matrices."""
    return _number(trained_state(model, optimizer).inputs.get("M", 0))


def checkpoint_quantity(model: ModelSpec, optimizer: OptimizerSpec) -> Quantity:
    """What this engine writes: its state without gradients. Balancing biases have neither gradient nor moments."""
    state = trained_state(model, optimizer)
    stored, muon, balance = (_number(state.inputs.get(letter, 0)) for letter in "NMB")
    value = state.number() - GRADIENT_BYTES * (stored - balance)
    terms = ["12 N", *(["4 M"] if muon else []), *(["8 B"] if balance else [])]
    source = state.source.replace("m, v, gradient, 4 each", "m, v")
    return Quantity("checkpoint_bytes", value, "bytes", " - ".join(terms), state.inputs, source)


def _number(value: Input) -> int:
    assert isinstance(value, Quantity | int)
    return int(value.number()) if isinstance(value, Quantity) else value


def state_quantities(work: Work, layout: Layout, stored: Quantity) -> tuple[Quantity, Quantity]:
    """Of the whole model, which stores ``stored`` parameters, and of the process that holds most."""
    return whole_state(work, stored), process_state(work, layout)


def whole_state(work: Work, stored: Quantity) -> Quantity:
    each = work.weight_bytes + work.gradient_bytes + work.optimizer_bytes
    count = int(stored.number())
    muon, moment = round(work.one_moment * count), min(MOMENT_BYTES, work.optimizer_bytes) / 2
    inputs: dict[str, Input] = {"N": stored} | ({"M": muon} if muon else {})
    source = (
        f"{work.weight_bytes} bytes of weights, {work.gradient_bytes} of gradients, {work.optimizer_bytes} of master copy and "
        "moments (deployment: state)" + ("; M: Muon's matrices, one moment" if muon else "")
    )
    formula = f"{each} N" + (f" - {moment:g} M" if muon else "")
    return Quantity("state_bytes", each * count - round(moment * muon), "bytes", formula, inputs, source)


def process_state(work: Work, layout: Layout) -> Quantity:
    cut = (work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    states = {at: state_bytes(work, layout, stages(*cut)[at]) for at in distinct_stages(*cut)}
    at = max(states, key=lambda at: sum(states[at].values()))
    parts = {name: bytes_ for name, bytes_ in states[at].items() if bytes_}
    where = f"zero {layout.zero} over {layout.shards:,} ranks that share states, pipeline stage {at} of {layout.pp}"
    source = where + (", moments in host memory but for those being updated" if layout.offload.moments else "")
    inputs: dict[str, Input] = dict(parts)
    return Quantity("state_bytes_per_process", sum(parts.values()), "bytes", " + ".join(parts), inputs, source)
