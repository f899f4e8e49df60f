"""The planner's step beside a dry run of the engine's: every kind of exchange, parameters and FLOPs of a rank, line by line.

    planned          plan/step/communication.py, memory, FLOPs: what an engine of this kind does
    + departures     where this engine does otherwise, each with its reason and by how much
    = expected  <->  seen     calls exactly, bytes and FLOPs within ``BYTES_TOLERANCE``

What is neither planned nor a known departure does not agree, whichever of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from headway.formulas.activations import element_bytes
from headway.formulas.flops import Convention, mean_keys
from headway.formulas.recompute import Recompute
from headway.plan.departures import (
    MASTER_BYTES,
    NOT_AGAIN,
    OWN_COPY,
    PADDING,
    Key,
    departures,
    ends_in_product,
    key_of,
    own_copy,
    planned_here,
    planned_messages,
)
from headway.plan.held import held, padded, products_per_token, stage_run
from headway.plan.host_link import TENSOR_BY_TENSOR, kept_activations, planned_activations, planned_moments
from headway.plan.memory.model import sharded_parameters
from headway.plan.memory.stages import stages
from headway.plan.work import Layout, Work
from headway.recipe.spec import ModelSpec, PrecisionSpec

BYTES_TOLERANCE = 0.02


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
    return [*_exchanges(work, layout, seen["exchanges"]), *_quantities(work, layout, seen), *_host_link(work, layout, seen)]


def _exchanges(work: Work, layout: Layout, seen: list[dict[str, Any]]) -> Iterator[Line]:
    one_by_one = ((key_of(c), c.calls, c.calls * c.payload_bytes) for c in planned_here(work, layout))
    planned = _summed(chain(one_by_one, planned_messages(work, layout)))
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


def _summed(entries: Iterable[tuple[Key, float, float]]) -> dict[Key, tuple[float, float]]:
    found: dict[Key, tuple[float, float]] = {}
    for key, calls, size in entries:
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + calls, before[1] + size)
    return found


def _quantities(work: Work, layout: Layout, seen: dict[str, Any]) -> Iterator[Line]:
    """Parameters and FLOPs of a rank."""
    model = work.model
    at = stages(model, layout.pp, layout.virtual, layout.tp, layout.ep)[stage_run(model, layout)]
    copy = model.vocabulary * model.width / layout.tp / layout.shards if own_copy(model, layout) else 0.0
    added = [Added(padded(model, layout).of_rank, PADDING), Added(copy, OWN_COPY)]
    yield _quantity("parameters of a rank", sharded_parameters(layout, at), seen["parameters"], added)
    tokens = layout.micro_batches(work.batch) * layout.micro_batch * work.sequence / (layout.cp * layout.tp)
    inside, behind = products_per_token(model, layout)
    full = layout.recompute is Recompute.FULL
    products = (8 if full else 6) * inside + 6 * behind
    left_out = [Added(-tokens * not_again_flops(model, layout), NOT_AGAIN)] if full else []
    yield _quantity("FLOPs of products", products * tokens, sum(seen["flops"].values()), left_out)
    yield from _attention(work, layout, tokens, seen["attention_flops"])


def _attention(work: Work, layout: Layout, tokens: float, seen: dict[str, float]) -> Iterator[Line]:
    counted, masked = (flops * tokens for flops in attention_forward(work, layout))
    forward = counted
    yield _quantity("FLOPs of attention, forward", forward, seen.get("forward", 0), [Added(masked, MASKED)])
    full, selective = layout.recompute is Recompute.FULL, layout.recompute is Recompute.SELECTIVE
    kept = work.model.attention_softcap is not None
    added = [
        Added((2 + full) * masked, MASKED),
        Added(0.0 if kept else (forward + masked) / 2, "scores are not kept, and computed again for their gradients"),
        Added(selective * (forward + masked), "attention is computed again as a whole, whatever its kernel keeps"),
    ]
    yield _quantity("FLOPs of attention, backward", (2 + full) * forward, seen.get("backward", 0), added)


def _host_link(work: Work, layout: Layout, seen: dict[str, Any]) -> Iterator[Line]:
    """Bytes over the host's link in a step."""
    met = seen["host_bytes"]
    if layout.offload.moments:
        yield _quantity("bytes of moments, each way", planned_moments(work, layout), met.get("moments each way", 0))
    if layout.offload.activations:
        planned = planned_activations(work, layout)
        added = [Added(kept_activations(work, layout) - planned, TENSOR_BY_TENSOR)]
        for way in ("to host memory", "back"):
            yield _quantity(f"bytes of activations {way}", planned, met.get(f"activations {way}", 0), added)


def not_again_flops(model: ModelSpec, layout: Layout) -> float:
    """Per token, of what a full recomputation of the planner's has and a block's of this engine has not: its last product
    (of routed experts all are needed), and what combines the inputs of a head for further tokens."""
    found, here = 0.0, held(model, layout)
    for layer in here.layers:
        width = model.ffn_width
        if model.experts is not None and model.has_experts(layer):
            width = model.experts.shared * model.experts.width
        if model.block.startswith("parallel"):
            width = model.heads * model.value_width
        found += 2 * model.width * width if ends_in_product(model) else 0
    return found + 2 * model.mtp_layers * 2 * model.width**2 * here.is_last


@dataclass(frozen=True)
class Added:
    """To what is planned."""

    amount: float
    reason: str


MASKED = "layers with a window, and those with capped scores, compute all scores of a row under a mask"


def attention_forward(work: Work, layout: Layout) -> tuple[float, float]:
    """FLOPs per token of this stage's layers: as the causal convention counts them, and those of scores beyond."""
    model, counted, computed = work.model, 0.0, 0.0
    for layer in held(model, layout).layers:
        window = model.window if model.is_windowed(layer) else None
        keys = mean_keys(work.sequence, window, Convention.CAUSAL)
        under_mask = model.attention_softcap is not None or (window is not None and _masks(work))
        counted += keys
        computed += mean_keys(work.sequence, None, Convention.FULL) if under_mask else keys
    widths = 2 * model.heads * (model.head_width + model.value_width)
    return widths * counted, widths * (computed - counted)


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
