"""The planner's step beside a dry run of the engine's: every kind of exchange, parameters and FLOPs of a rank, line by line.

    planned          plan/step/communication.py, memory, FLOPs: what an engine of this kind does
    + departures     where this engine does otherwise, each with its reason and by how much
    = expected  <->  seen     calls exactly, bytes and FLOPs within ``BYTES_TOLERANCE``

What is neither planned nor a known departure does not agree, whichever of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headway.formulas.activations import element_bytes
from headway.formulas.flops import Convention, attention_flops_per_token, attention_layers, mean_keys
from headway.formulas.recompute import Recompute, hardware_flops_per_token
from headway.plan.departures import MASTER_BYTES, NOT_AGAIN, PADDING, Key, departures, ends_in_product, key_of, planned_here
from headway.plan.held import padded
from headway.plan.memory.model import sharded_parameters
from headway.plan.memory.stages import stages
from headway.plan.work import Layout, Work
from headway.recipe.spec import ModelSpec, PrecisionSpec

BYTES_TOLERANCE = 0.02
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class Line:
    """Calls are exact; ``bytes``: whole messages, summed over calls (or parameters, or FLOPs: see ``what``)."""

    what: str
    planned_calls: float | None
    planned: float
    expected_calls: float | None
    expected: float
    seen_calls: float | None
    seen: float
    reasons: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        near = abs(self.seen - self.expected) <= BYTES_TOLERANCE * max(abs(self.expected), 1.0)
        return near and self.seen_calls == self.expected_calls


def engine_work(model: ModelSpec, precision: PrecisionSpec, sequence: int, batch: int) -> Work:
    """A step of this engine: fp32 master weights and two moments, gathered in the type that products run in."""
    return Work(
        model=model,
        sequence=sequence,
        batch=batch,
        precision=precision.compute,
        weight_bytes=element_bytes(precision.compute),
        gradient_bytes=MASTER_BYTES,
        optimizer_bytes=12,
    )


def reconcile(work: Work, layout: Layout, seen: dict[str, Any]) -> list[Line]:
    """``seen``: what a dry run answered."""
    return [*_exchanges(work, layout, seen["exchanges"]), *_quantities(work, layout, seen)]


def _exchanges(work: Work, layout: Layout, seen: list[dict[str, Any]]) -> Iterator[Line]:
    planned = _summed((key_of(c), c.calls, c.calls * c.payload_bytes) for c in planned_here(work, layout))
    met = _summed(((e["axis"], e["kind"], e["phase"]), e["calls"], e["calls"] * e["payload_bytes"]) for e in seen)
    found = list(departures(work, layout))
    added = _summed((d.key, d.calls, d.bytes) for d in found)
    for key in sorted(planned.keys() | met.keys() | added.keys()):
        calls, size = planned.get(key, (0.0, 0.0))
        more_calls, more = added.get(key, (0.0, 0.0))
        seen_calls, seen_bytes = met.get(key, (0.0, 0.0))
        if not (calls or seen_calls or calls + more_calls):
            continue
        axis, kind, phase = key
        yield Line(
            what=f"{axis}, {kind.replace('_', '-')}, {phase}",
            planned_calls=calls,
            planned=size,
            expected_calls=calls + more_calls,
            expected=size + more,
            seen_calls=seen_calls,
            seen=seen_bytes,
            reasons=tuple(d.reason for d in found if d.key == key),
        )


def _summed(entries: Iterator[tuple[Key, float, float]]) -> dict[Key, tuple[float, float]]:
    found: dict[Key, tuple[float, float]] = {}
    for key, calls, size in entries:
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + calls, before[1] + size)
    return found


def _quantities(work: Work, layout: Layout, seen: dict[str, Any]) -> Iterator[Line]:
    """Parameters and FLOPs of a rank."""
    (at,) = stages(work.model, 1, 1, layout.tp, layout.ep)
    added = [Added(padded(work.model, layout).of_rank, PADDING)]
    yield _quantity("parameters of a rank", sharded_parameters(layout, at), seen["parameters"], added)
    tokens = layout.micro_batches(work.batch) * layout.micro_batch * work.sequence / (layout.cp * layout.tp)
    attention = attention_flops_per_token(work.model, work.sequence, Convention.FULL)
    hardware = hardware_flops_per_token(work.model, work.sequence, Convention.FULL, layout.recompute)
    full = layout.recompute is Recompute.FULL
    products = hardware - attention * (1 + full * FORWARD_SHARE)
    left_out = [Added(-tokens * not_again_flops(work.model), NOT_AGAIN)] if full else []
    yield _quantity("FLOPs of products", products * tokens, sum(seen["flops"].values()), left_out)
    yield from _attention(work, layout, tokens, seen["attention_flops"])


def _attention(work: Work, layout: Layout, tokens: float, seen: dict[str, float]) -> Iterator[Line]:
    forward = attention_flops_per_token(work.model, work.sequence, Convention.CAUSAL) * tokens * FORWARD_SHARE
    masked = masked_attention_flops(work) * tokens * FORWARD_SHARE
    yield _quantity("FLOPs of attention, forward", forward, seen.get("forward", 0), [Added(masked, MASKED)])
    full, selective = layout.recompute is Recompute.FULL, layout.recompute is Recompute.SELECTIVE
    kept = work.model.attention_softcap is not None
    added = [
        Added((2 + full) * masked, MASKED),
        Added(0.0 if kept else (forward + masked) / 2, "scores are not kept, and computed again for their gradients"),
        Added(selective * (forward + masked), "attention is computed again as a whole, whatever its kernel keeps"),
    ]
    yield _quantity("FLOPs of attention, backward", (2 + full) * forward, seen.get("backward", 0), added)


def not_again_flops(model: ModelSpec) -> float:
    """Per token, of what a full recomputation of the planner's has and a block's of this engine has not: its last product
    (of routed experts all are needed), and what combines the inputs of a head for further tokens."""
    found = 0.0
    for layer in range(model.layers + model.mtp_layers):
        routed = model.has_experts(min(layer, model.layers - 1))
        width = model.ffn_width
        if routed and model.experts is not None:
            width = model.experts.shared * model.experts.width
        if model.block.startswith("parallel"):
            width = model.heads * model.value_width
        found += 2 * model.width * width if ends_in_product(model) else 0
    return found + 2 * model.mtp_layers * 2 * model.width**2


@dataclass(frozen=True)
class Added:
    """To what is planned."""

    amount: float
    reason: str


MASKED = "layers with a window, and those with capped scores, compute all scores of a row under a mask"


def masked_attention_flops(work: Work) -> float:
    """Per token, forward and backward: scores beyond those that the convention counts."""
    model, full = work.model, mean_keys(work.sequence, None, Convention.FULL)
    widths = 6 * model.heads * (model.head_width + model.value_width)
    open_layers, windowed = attention_layers(model)
    beyond = windowed * (full - mean_keys(work.sequence, model.window, Convention.CAUSAL)) if _masks(work) else 0.0
    if model.attention_softcap is not None:
        beyond += (open_layers if _masks(work) else open_layers + windowed) * full / 2
    return widths * beyond


def _masks(work: Work) -> bool:
    """Whether its window is narrower than a row."""
    return work.model.window is not None and work.model.window < work.sequence


def _quantity(what: str, planned: float, seen: float, added: Sequence[Added] = ()) -> Line:
    return Line(
        what=what,
        planned_calls=None,
        planned=planned,
        expected_calls=None,
        expected=planned + sum(one.amount for one in added),
        seen_calls=None,
        seen=seen,
        reasons=tuple(one.reason for one in added if one.amount),
    )
